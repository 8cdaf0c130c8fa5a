"""Completion: suggestions for a shell, with names of tasks, queues and settings.

Comes from:  the shell's function, which runs the command with _QWORKER_COMPLETE set.
Goes to:     that shell; the app's own output is suppressed.
Thread:      main; ended by a timer if an app takes long to import.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

VARIABLE = "_QWORKER_COMPLETE"
SECONDS = 3.0
"""Maximum seconds that a shell waits for names."""


def asks(instruction: str | None) -> bool:
    """Return whether a shell asks for names; click answers other requests, such as for its function."""
    return instruction is not None and instruction.endswith("_complete")


def answer(command: click.Command, instruction: str) -> NoReturn:
    """Write completions for the words set by the shell, and end the process at once.

    Nothing is written if an app cannot be imported in time.
    """
    shell = _silence()
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        kind = get_completion_class(instruction.removesuffix("_complete"))
        if kind is not None:
            os.write(shell, (kind(command, {}, "qworker", VARIABLE).complete() + "\n").encode())
    except BaseException:  # noqa: BLE001 - an app may raise anything; a traceback would land in the prompt
        pass
    os._exit(0)  # without waiting for threads and exit handlers of the app


def _silence() -> int:
    """Redirect standard output and error. Return the descriptor that the shell reads."""
    shell = os.dup(sys.__stdout__.fileno() if sys.__stdout__ else 1)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    return shell


def task_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return matching names of tasks, or else short names."""
    from qworker.cli.discovery import find_app, load_tasks
    from qworker.naming import own_tasks

    app = find_app(_named(ctx)).app
    load_tasks(app)
    names = own_tasks(app.tasks)
    return _fitting(names, incomplete) or _fitting((name.rpartition(".")[2] for name in names), incomplete)


def queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of queues in the app's settings and tasks. The broker is not queried: it may be remote."""
    from qworker.cli.discovery import find_app, load_tasks
    from qworker.cli.names import queues_in_use

    app = find_app(_named(ctx)).app
    load_tasks(app)
    return _fitting(queues_in_use(app), incomplete)


def several_queue_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the last of several names separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in queue_names(ctx, param, last) if name not in given]


def setting_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of settings."""
    from qworker.conf import SETTINGS

    return _fitting(SETTINGS, incomplete)


def _named(ctx: click.Context) -> str | None:
    """Return the value of -A, given before or after the command; `start` also accepts the app as an
    argument."""
    given = (ctx.params.get("app"), ctx.params.get("named"), ctx.find_root().params.get("app"))
    return next((name for name in given if name), None)


def _fitting(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
