"""Options: what several commands take, and how they get at the app.

Comes from:  the command line.
Goes to:     discovery, then each command.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qworker.app import QWorker
from qworker.cli.discovery import AppChoice, find_app, load_tasks
from qworker.naming import valid_queue_name

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # takes no parameter in older releases

_F = TypeVar("_F", bound=Callable[..., Any])


def app_option(command: _F) -> _F:
    """Add -A/--app. The function gets it as `app`."""
    help_text = "The app: proj.tasks, proj.tasks:app or path/to/file.py."
    return click.option("-A", "--app", metavar="APP", help=help_text)(command)


def json_option(command: _F) -> _F:
    """Add --json. The function gets it as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def open_app(option: str | None, tasks: bool = True) -> AppChoice:
    """Return the app that a command is about. When nobody named it, say on standard error which one it is.

    - option (text): what -A says.
    - tasks (bool): import the modules of its tasks too. Its settings must be in order for that.

    Raises QWorkerError when there is no app.
    """
    context = click.get_current_context(silent=True)
    named = option if option is not None else context.find_root().obj if context else None
    if isinstance(named, QWorker):
        choice = AppChoice(named, "this program is its own", named.main or "__main__")
    else:
        choice = find_app(named)
    if named is None:
        click.echo(f"Using {choice.target}: {choice.how}.", err=True)
    if tasks:
        load_tasks(choice.app)
    return choice


class QueueNames(ParamType):
    """Names of queues with commas between them, as a tuple."""

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
                    f"{name[:80]!r} is no queue name; use letters, digits, '.', '-' and '_'", param, ctx
                )
        return tuple(dict.fromkeys(names))


class SettingValue(ParamType):
    """A value read by the declaration of a setting, so that the command line and the settings agree on what
    is valid."""

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
