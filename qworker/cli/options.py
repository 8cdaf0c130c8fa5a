"""Options shared by several commands, and opening the app.

Comes from:  the command line.
Goes to:     discovery, then each command.
Thread:      main.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from qworker.app import QWorker
from qworker.cli.completion import several_queue_names
from qworker.cli.discovery import AppChoice, find_app, load_tasks
from qworker.errors import ConfigurationError
from qworker.logs import parse_level
from qworker.message import kombu_json
from qworker.naming import valid_queue_name

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # takes no parameter in older releases

_F = TypeVar("_F", bound=Callable[..., Any])

YEARS = range(1970, 9000)
"""Years supported by all schedules."""


def app_option(command: _F) -> _F:
    """Add -A/--app. The function gets it as `app`."""
    help_text = "The app: proj.tasks, proj.tasks:app or path/to/file.py."
    return click.option("-A", "--app", metavar="APP", help=help_text)(command)


def json_option(command: _F) -> _F:
    """Add --json. The function gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def process_options(command: _F) -> _F:
    """Add -l/--loglevel, -f/--logfile, --log-json and --pidfile, for long-running commands."""
    for option in reversed(
        (
            click.option(
                "-l",
                "--loglevel",
                type=Checked("level", parse_level),
                default="INFO",
                show_default=True,
                help="DEBUG, INFO, WARNING, ERROR, CRITICAL.",
            ),
            click.option(
                "-f",
                "--logfile",
                metavar="FILE",
                help="File to log to, instead of standard error. Codes: %n name, %h host, %p both.",
            ),
            click.option("--log-json", is_flag=True, default=None, help="Log one JSON object a line."),
            click.option(
                "--pidfile",
                metavar="FILE",
                help="File for the process id; prevents a second start.",
            ),
        )
    ):
        command = option(command)
    return command


def open_app(option: str | None, tasks: bool = True) -> AppChoice:
    """Return the app of a command. If it was not named, print which one it is on standard error.

    - option (text): the value of -A.
    - tasks (bool): also import the modules of its tasks. Its settings must be valid for that.

    Raises QWorkerError when there is no app.
    """
    context = click.get_current_context(silent=True)
    named = option if option is not None else context.find_root().obj if context else None
    if isinstance(named, QWorker):
        choice = AppChoice(named, "the app of this program", named.main or "__main__")
    else:
        choice = find_app(named)
    if named is None:
        click.echo(f"Using {choice.target}: {choice.how}.", err=True)
    if tasks:
        load_tasks(choice.app)
    return choice


def open_sent(option: str | None, tasks: bool = True) -> AppChoice:
    """open_app() for commands about messages sent earlier.

    Raises ConfigurationError if the broker is a missing file or directory.
    """
    choice = open_app(option, tasks)
    if reason := nothing_there(choice.app):
        raise ConfigurationError(reason, setting="broker_url")
    return choice


def nothing_there(app: QWorker) -> str:
    """Explain that the file or directory of the broker is missing, and what to do; "" if it exists."""
    path = app.broker.missing
    if path is None:
        return ""
    return (
        f"there is no {path}: nothing has been sent there yet. If something has, correct broker_url "
        f"({app.conf.source('broker_url')}); sending the first task creates it"
    )


class Number(click.IntRange):
    """A whole number, shown in help as NUMBER instead of INTEGER RANGE."""

    name = "number"


class DependentOption(click.Option):
    """An option that only has an effect together with another one, and is refused without it.

    requires: the parameter name of the other option.
    """

    def __init__(self, *args: Any, requires: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.requires = requires

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        read = super().handle_parse_result(ctx, opts, args)  # an invalid value is reported first
        if opts.get(self.name or "") is not None and not opts.get(self.requires):
            other = next(param for param in ctx.command.params if param.name == self.requires)
            names = [max(param.opts, key=len) for param in (self, other)]
            raise click.UsageError(f"{names[0]} needs {names[1]}.", ctx)
        return read


class Instant(ParamType):
    """A time in ISO 8601, as a datetime; naive if it has no time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            found = None
        if found is None or found.year not in YEARS:
            self.fail(f"{value[:80]!r} is not a time: write it as 2027-01-31T08:00:00+01:00", param, ctx)
        return found


class QueueNames(ParamType):
    """Names of queues separated by commas, as a tuple."""

    name = "queues"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(","))
        for name in names:
            if not name:
                self.fail(f"a name is empty in {value[:80]!r}; write them as a,b,c", param, ctx)
            if not valid_queue_name(name):
                self.fail(
                    f"{name[:80]!r} is not a queue name; use letters, digits, '.', '-' and '_'", param, ctx
                )
        return tuple(dict.fromkeys(names))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(names) for names in several_queue_names(ctx, param, incomplete)]


class Checked(ParamType):
    """Text checked by a function. A refused value is wrong usage."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value) if isinstance(value, str) else value
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


class JsonValue(ParamType):
    """JSON text of one type."""

    def __init__(self, shape: type, example: str) -> None:
        self.name = "json"
        self._shape = shape
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, self._shape):
            return value
        try:
            parsed = _read_json(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"this is not JSON: {error}; write it as {self._example}", param, ctx)
        if not isinstance(parsed, self._shape):
            self.fail(f"write it as {self._example}", param, ctx)
        return parsed


def _read_json(text: str) -> Any:
    """Return the values of *text* in the JSON of messages: a tagged dictionary is a datetime or similar type.

    Raises ValueError or RecursionError for invalid JSON, click.BadParameter for an invalid tag.
    """
    parsed = json.loads(text, parse_constant=_refuse_constant)
    try:
        return kombu_json.loads(text) if "__type__" in text else parsed
    except Exception as error:  # noqa: BLE001 - decoders of registered types raise anything
        reason = f"{type(error).__name__}: {error}"
        raise click.BadParameter(f"a value tagged with __type__ cannot be read: {reason}") from None


def _refuse_constant(name: str) -> Any:
    """Refuse NaN and infinity, which Python reads although JSON has no such values."""
    raise ValueError(f"it has no {name}")


def loose(text: str) -> Any:
    """Return *text* as JSON, or else the text itself."""
    try:
        return _read_json(text)
    except (ValueError, RecursionError):
        return text


class SettingValue(ParamType):
    """A value converted by the declaration of a setting, so that the command line and the settings accept the
    same values."""

    def __init__(self, setting: str) -> None:
        from qworker.conf import SETTINGS

        self._setting = SETTINGS[setting]
        self.name = self._setting.kind.label.partition(" (")[0].rpartition(" ")[2]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._setting.read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


QUEUE_NAMES = QueueNames()
