"""The command `qworker`: a group whose commands are imported on use.

Comes from:  the console script, `python -m qworker`.
Goes to:     one module of this package for each command.
Thread:      main.
User errors end in one clear message and exit code 1 (2 for wrong usage), never in a traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from qworker import __version__
from qworker.cli import completion
from qworker.cli.groups import SuggestingGroup

# Command → (module of this package, function in it, short help); listed here so that --help imports none of
# them.
COMMANDS = {
    "start": ("start", "start", "Run a worker."),
    "beat": ("beat.commands", "beat", "Run the schedules; show and change them."),
    "call": ("call", "call", "Send a task, and optionally wait for its result."),
    "result": ("result", "result", "Show the state and result of a task."),
    "graph": ("graph", "graph", "Show a whole workflow by the id of a call in it."),
    "queues": ("queues", "queues", "Show the queues: number and age of their messages."),
    "workers": ("workers", "workers", "Show the workers and what they are doing."),
    "tasks": ("tasks", "tasks", "Show the tasks that are running, waiting, or due later."),
    "failed": ("letters", "failed", "Show failed tasks; retry or discard them."),
    "dead": ("letters", "dead", "Show dead letters; retry or discard them."),
    "revoke": ("revoke", "revoke", "Keep tasks from running, or stop them."),
    "purge": ("purge", "purge", "Remove the waiting messages of queues."),
    "delayed": ("delayed", "delayed", "Show messages that are due later; move them to their queues."),
    "move": ("move", "move_", "Move messages from one broker to another."),
    "spool": ("spool.commands", "spool", "Manage spool directories, uWSGI's or ours."),
    "config": ("config", "config", "Show all settings with their sources; check them."),
    "health": ("health", "health", "Check whether a worker is running and consuming; for probes."),
    "doctor": ("doctor.commands", "doctor", "Look for problems, and say what to do."),
    "init": ("init.commands", "init", "Print files to run this project: systemd, docker, …"),
    "shell": ("shell", "shell", "A Python prompt with the app and its tasks."),
    "report": ("report", "report", "Versions and settings, for a bug report."),
}
# Celery's name of a command; accepted, but not listed.
ALIASES = {"worker": "start"}

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""The ``errno`` values of a full disk."""

EXIT_MISTAKE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LazyGroup(SuggestingGroup):
    """Imports a command when it is called; lists commands without importing them; reports every error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(ALIASES.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command = getattr(import_module(f"qworker.cli.{entry[0]}"), entry[1])
        assert isinstance(command, click.Command)
        return command

    def without(self, name: str) -> str | None:
        from qworker.conf.unsupported import COMMANDS as CELERYS

        return CELERYS.get(name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return matching commands and options; no command is imported for it."""
        return [
            CompletionItem(name, help=help_line)
            for name, (_, _, help_line) in COMMANDS.items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        extra.pop("standalone_mode", None)
        sys.exit(self._run(args, prog_name, extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        if completion.asks(instruction := os.environ.get(completion.VARIABLE)):
            completion.answer(self, str(instruction))
        try:
            code = super().main(args, prog_name or "qworker", standalone_mode=False, **extra)
            if sys.stdout is not None:  # it is None if the descriptor was closed
                sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("Interrupted.", err=True)
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            _silence_output()
            return EXIT_MISTAKE
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(OSError):  # standard error may be full too
                click.echo(
                    f"Error: cannot write {error.filename or 'the output'}: {error.strerror}", err=True
                )
            _silence_output()
            return EXIT_MISTAKE
        except Exception as error:
            if not _is_ours(error):
                raise
            click.echo(f"Error: {_masked(error)}", err=True)
            return EXIT_MISTAKE


def _is_ours(error: Exception) -> bool:
    """Return whether an error is reported in one line. The errors are imported here, because that takes 20 ms
    that is rarely needed."""
    from qworker.errors import QWorkerError

    return isinstance(error, QWorkerError)


def _masked(error: Exception) -> str:
    from qworker.conf.secrets import mask_urls

    return mask_urls(str(error))


def _silence_output() -> None:
    """Discard further output, because the reader is gone; also the interpreter's at exit."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(silence, stream.fileno())
        except (OSError, ValueError):
            pass


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without -A the app is found by QWORKER_APP, pyproject.toml, Django's settings and ./tasks.py.",
)
@click.version_option(__version__, "--version", prog_name="qworker", message="%(prog)s %(version)s")
@click.option("-A", "--app", metavar="APP", help="The app: proj.tasks, proj.tasks:app or path/to/file.py.")
@click.pass_context
def main(ctx: click.Context, app: str | None) -> None:
    """Distributed task queue.

    \b
    To begin:  qworker start --demo     see it work
               qworker start -A tasks   run the tasks of tasks.py
    """
    from qworker.logs import plain_terminal

    if plain_terminal():
        ctx.color = False  # for all commands
    if app is not None:  # otherwise it may be the app itself: see QWorker.start
        ctx.obj = app
