"""`qworker result`: what became of a task.

Comes from:  people and scripts, with the id that `call` or `delay()` gave.
Goes to:     the result store.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

import click

from qworker.cli.options import SettingValue, app_option, json_option, open_app
from qworker.cli.output import print_json
from qworker.errors import ResultTimeout
from qworker.result import AsyncResult
from qworker.states import READY_STATES, SUCCESS

EXIT_FAILED = 1
EXIT_NOT_READY = 3


@click.command(
    epilog="Exit codes: 0 the task succeeded; 1 it failed or was revoked; 3 there is no result (yet). "
    "PENDING also means that nobody knows the id, or that the result was ignored or has expired."
)
@click.argument("task_id", metavar="ID")
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
def result(task_id: str, app: str | None, wait: bool, timeout: float, traceback: bool, as_json: bool) -> int:
    """Show the state and result of a task."""
    found = open_app(app)
    answer: AsyncResult[Any] = found.app.AsyncResult(task_id.strip())
    if wait and not answer.ready():
        try:
            answer.get(timeout=timeout, propagate=False)
        except ResultTimeout:
            click.echo(f"Error: no result after {timeout:g} s", err=True)
    return show(answer, as_json, traceback)


def show(answer: AsyncResult[Any], as_json: bool, traceback: bool = False) -> int:
    """Prints a result; the exit code that goes with it."""
    state = answer.state
    value = answer.result
    failed = isinstance(value, BaseException)
    if as_json:
        shown = {"type": type(value).__name__, "message": str(value)} if failed else value
        fields = {"id": answer.id, "state": state, "result": shown, "traceback": answer.traceback}
        print_json({**fields, "date_done": answer.date_done})
    elif failed:
        click.echo(f"{state}: {type(value).__name__}: {value}")
        if traceback and answer.traceback:
            click.echo(answer.traceback.rstrip())
    elif state == SUCCESS:
        click.echo(repr(value))
    else:
        click.echo(state if value is None else f"{state}: {value!r}")
    if state == SUCCESS:
        return 0
    return EXIT_FAILED if state in READY_STATES else EXIT_NOT_READY
