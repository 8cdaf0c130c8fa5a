"""`qworker result`: what became of a task, or of several.

Comes from:  people and scripts, with the ids that `call` or `delay()` gave.
Goes to:     the result store.
Thread:      main.
"""

from __future__ import annotations

import time
from typing import Any

import click

from qworker.cli.options import SettingValue, app_option, json_option, open_app
from qworker.cli.output import print_json
from qworker.errors import DamagedResult, ResultTimeout
from qworker.results.result import AsyncResult
from qworker.states import PENDING, READY_STATES, SUCCESS

EXIT_FAILED = 1
EXIT_NOT_READY = 3
_GRAVITY = (0, EXIT_NOT_READY, EXIT_FAILED)
UNREADABLE = "UNREADABLE"
"""Told in place of a state, where what is stored is damaged or forged."""


@click.command(
    epilog="Exit codes: 0 all of them succeeded; 1 one failed, was revoked or cannot be read; 3 there is no "
    "result (yet) of one. "
    "PENDING also means that nobody knows the id, or that the result was ignored or has expired."
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@app_option
@click.option("-w", "--wait", is_flag=True, help="Wait for it.")
@click.option(
    "--timeout",
    type=SettingValue("worker_shutdown_timeout"),
    default="60s",
    show_default=True,
    help="How long.",
)
@click.option("--traceback", is_flag=True, help="Print the traceback of a failed task too.")
@json_option
def result(
    task_ids: tuple[str, ...], app: str | None, wait: bool, timeout: float, traceback: bool, as_json: bool
) -> int:
    """Show the state and result of a task, or of several."""
    choice = open_app(app).app
    answers: list[AsyncResult[Any]] = [choice.AsyncResult(task_id.strip()) for task_id in task_ids]
    if wait:
        _wait(answers, timeout)
    stored = choice.backend.read_many([answer.id for answer in answers])
    for answer in answers:
        known = stored.get(answer.id) or {"status": PENDING, "result": None}
        answer.keep({"status": UNREADABLE, "result": known} if isinstance(known, DamagedResult) else known)
    if len(answers) == 1:
        return show(answers[0], as_json, traceback)
    if as_json:
        print_json([fields(answer) for answer in answers])
        return max(map(exit_code, answers), key=_GRAVITY.index)
    codes = []
    for answer in answers:
        click.echo(f"{answer.id}  ", nl=False)
        codes.append(show(answer, False, traceback))
    return max(codes, key=_GRAVITY.index)


def _wait(answers: list[AsyncResult[Any]], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for answer in answers:
        try:
            answer.get(timeout=deadline - time.monotonic(), propagate=False)
        except DamagedResult:
            pass  # which is told with the others
        except ResultTimeout:
            click.echo(f"Error: no result after {timeout:g} s", err=True)
            return


def show(answer: AsyncResult[Any], as_json: bool, traceback: bool = False) -> int:
    """Print a result, and return the exit code that goes with it."""
    state = answer.state
    value = answer.result
    if as_json:
        print_json(fields(answer))
    elif isinstance(value, BaseException):
        click.echo(f"{state}: {type(value).__name__}: {value}")
        if traceback and answer.traceback:
            click.echo(answer.traceback.rstrip())
    elif state == SUCCESS:
        click.echo(repr(value))
    else:
        click.echo(state if value is None else f"{state}: {value!r}")
    return exit_code(answer)


def fields(answer: AsyncResult[Any]) -> dict[str, Any]:
    """What is printed of a result as JSON."""
    value = answer.result
    failed = isinstance(value, BaseException)
    fields = {"type": type(value).__name__, "message": str(value)} if failed else value
    return {
        "id": answer.id,
        "state": answer.state,
        "result": fields,
        "traceback": answer.traceback,
        "date_done": answer.date_done,
    }


def exit_code(answer: AsyncResult[Any]) -> int:
    """The exit code that goes with a result."""
    if answer.state == SUCCESS:
        return 0
    return EXIT_FAILED if answer.state in {*READY_STATES, UNREADABLE} else EXIT_NOT_READY
