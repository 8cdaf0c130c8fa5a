"""The options of commands that run a spooler: uWSGI's, and ours.

Comes from:  the command line.
Goes to:     ``SpoolerGiven``, which is merged with the settings of the app.
Thread:      main.

A key for sockets is only taken from settings and ini files: everybody can see the command line of a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from qworker.cli.options import SettingValue
from qworker.spooler.options import SETTING_OF, with_whole_paths

if TYPE_CHECKING:
    from qworker.conf import Settings
    from qworker.spooler.ini import IniFile
    from qworker.spooler.options import SpoolerOptions

_F = TypeVar("_F", bound=Callable[..., Any])

_PREFIX = "spooler_"
_ORDER = "qworker.spooler.named"
"""The key, in click's context, of the first directory on the command line."""
_HELP = "qworker.spooler.help"
"""The key, in click's context, that is set for help about the spooler."""


class SpoolerGiven(NamedTuple):
    """The values of the command line. values: fields of SpoolerOptions. ini: None if none was named."""

    values: Mapping[str, Any]
    ini: IniFile | None

    @property
    def names_directories(self) -> bool:
        """Return whether directories are named, regardless of the settings."""
        ini = {} if self.ini is None else self.ini.values
        return bool(self.values.get("directories") or ini.get("directories"))

    def with_directories(self, directories: tuple[str, ...]) -> SpoolerGiven:
        """Return a copy with these directories before those of ``--spooler``."""
        if not directories:
            return self
        named = dict.fromkeys((*directories, *self.values.get("directories", ())))
        return self._replace(values={"default": directories[0], **self.values, "directories": tuple(named)})

    def options(self, conf: Settings) -> SpoolerOptions:
        """Return all options, merged with the settings."""
        from qworker.spooler.settings import merge

        return merge(conf, self.ini, self.values)


def _named(context: click.Context, param: click.Parameter, value: Any) -> Any:
    """Record the first directory: click passes each option its values, without the order of options."""
    if value:
        context.meta.setdefault(_ORDER, value[0][0])
    return value


def _value(option: str, field: str, text: str, **more: Any) -> Callable[[_F], _F]:
    return click.option(option, _PREFIX + field, type=SettingValue(SETTING_OF[field]), help=text, **more)


def _list(option: str, field: str, metavar: str, text: str) -> Callable[[_F], _F]:
    """Make an option that can be repeated. Each value is one that the setting could have."""
    kept = _named if field in ("directories", "external") else None
    return click.option(
        option,
        _PREFIX + field,
        type=_One(SETTING_OF[field]),
        multiple=True,
        metavar=metavar,
        help=f"{text} Can be repeated.",
        callback=kept,
    )


class _One(SettingValue):
    """One value of a setting that is a list; commas and brackets have no meaning in it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert([value] if isinstance(value, str) else value, param, ctx)


def _flag(option: str, field: str, text: str) -> Callable[[_F], _F]:
    return click.option(f"--{option}/--no-{option}", _PREFIX + field, default=None, help=text)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _list("--spooler", "directories", "DIR", "Run the jobs of this spool directory."),
    _list("--spooler-external", "external", "DIR", "Write jobs to this directory, for other spoolers."),
    _flag(
        "spooler-ordered",
        "ordered",
        "Run jobs in natural order of names, including those with a priority.",
    ),
    _value("--spooler-chdir", "chdir", "Directory to run jobs in.", metavar="DIR"),
    _value("--spooler-processes", "processes", "Processes for jobs."),
    _flag("spooler-quiet", "quiet", "Do not log each job."),
    _value("--spooler-max-tasks", "max_tasks", "Replace a process after this many jobs."),
    _flag("spooler-signal-as-task", "signal_as_task", "Signals count as jobs for --spooler-max-tasks."),
    _value("--spooler-harakiri", "harakiri", "Kill a process whose job takes longer."),
    _value("--spooler-frequency", "frequency", "How often to scan a directory."),
    _list("--spooler-python-import", "imports", "MODULE", "Import this module or file in each process."),
    _list("--spooler-socket", "sockets", "ADDRESS", "Receive packets at host:port, or a UNIX socket."),
    _list("--spooler-socket-allow", "socket_allow", "NETWORK", "Also accept packets from these peers."),
    _value("--spooler-max-attempts", "max_attempts", "Set a job aside after this many attempts; 0: never."),
    _value(
        "--spooler-backoff", "backoff", "Wait this long for the second attempt, then twice as long each time."
    ),
    _value("--spooler-backoff-max", "backoff_max", "…but never longer."),
    _flag("spooler-allow-pickle", "allow_pickle", "Unpickle arguments of uWSGI's decorators."),
    _value(
        "--spooler-bridge", "bridge", "Send the tasks that this function returns for jobs.", metavar="M:F"
    ),
    _flag("spooler-results", "results", "Store the return values of jobs."),
    click.option(
        "--ini",
        _PREFIX + "ini",
        multiple=True,
        metavar="FILE[:SECTION]",
        help="Use the spooler's options of a uWSGI ini file. Can be repeated.",
    ),
)


def spooler_options(command: _F) -> _F:
    """Add all options of the spooler. The function gets a SpoolerGiven as `spooler`."""

    @functools.wraps(command)
    def with_given(*args: Any, **kwargs: Any) -> Any:
        own = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith(_PREFIX)}
        return command(*args, spooler=_given(own), **kwargs)

    decorated: Any = with_given
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: _F = decorated
    return result


class SpoolerHelpApart(click.Command):
    """A command whose --help shows the spooler's options only with --help-spooler."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        shown = click.Option(
            ["--help-spooler"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_spooler_help,
            help="Show the options for spool directories and exit.",
        )
        self.params.append(shown)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        spooler = ctx.meta.get(_HELP, False)
        params = [each for each in self.get_params(ctx) if (each.name or "").startswith(_PREFIX) == spooler]
        with formatter.section("Options for spool directories" if spooler else "Options"):
            formatter.write_dl([row for each in params if (row := each.get_help_record(ctx)) is not None])


def _show_spooler_help(context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        context.meta[_HELP] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _given(own: dict[str, Any]) -> SpoolerGiven:
    files = own.pop(_PREFIX + "ini")
    values: dict[str, Any] = {}
    for name, value in own.items():
        if value is None or value == ():
            continue
        field = name.removeprefix(_PREFIX)
        values[field] = tuple(one for part in value for one in part) if isinstance(value, tuple) else value
    first = click.get_current_context().meta.get(_ORDER)
    if first is not None:
        values["default"] = first
    ini = None
    if files:
        from qworker.spooler.ini import read_ini

        ini = read_ini(*files)
    return SpoolerGiven(with_whole_paths(values), ini)
