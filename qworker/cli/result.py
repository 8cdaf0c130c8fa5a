"""`qworker result`: the states and results of tasks.

Comes from:  users and scripts, with ids from `call` or `delay()`.
Goes to:     the result store.
Thread:      main.
"""

from __future__ import annotations

import time
from typing import Any

import click

from qworker.app import QWorker
from qworker.cli.options import DependentOption, SettingValue, app_option, json_option, open_app
from qworker.cli.watching import Picture, watch_options
from qworker.cli.watching import show as display
from qworker.errors import BackendError, ConfigurationError, DamagedResult, NotSupported, ResultTimeout
from qworker.results.result import AsyncResult
from qworker.states import PENDING, READY_STATES, SUCCESS

EXIT_FAILED = 1
EXIT_NOT_READY = 3
_GRAVITY = (0, EXIT_NOT_READY, EXIT_FAILED)
UNREADABLE = "UNREADABLE"
"""Reported instead of a state for damaged or forged data."""
NOT_STORED = (
    "it is waiting or running, its result was ignored or has expired, its message is a dead letter "
    "(see qworker dead list), or the id is wrong"
)
"""Possible reasons if nothing is stored for a call."""


_ONLY_THERE = (
    "results at {} are only available in the calling process: set result_backend, for instance to "
    "redis://… or db+postgresql://…"
)


@click.command(
    epilog="Exit codes: 0 all of them succeeded; 1 one failed, was revoked or cannot be read; 3 one has "
    "no result (yet). PENDING also means that the id is unknown, or that the result was "
    "ignored or has expired."
)
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@app_option
@click.option("-w", "--wait", is_flag=True, help="Wait for it.")
@click.option(
    "--timeout",
    cls=DependentOption,
    requires="wait",
    type=SettingValue("worker_shutdown_timeout"),
    default="60s",
    show_default=True,
    help="How long --wait waits.",
)
@watch_options
@click.option("--traceback", is_flag=True, help="Also print the traceback of a failed task.")
@json_option
def result(
    task_ids: tuple[str, ...],
    app: str | None,
    wait: bool,
    timeout: float,
    watch: bool,
    every: float,
    traceback: bool,
    as_json: bool,
) -> int:
    """Show the state and result of one task or several. --watch ends when they have ended."""
    if not all(map(str.strip, task_ids)):
        raise click.UsageError("An id is empty.")
    choice = open_app(app).app
    refuse_to_ask(choice)
    refuse_missing(choice, wait, watch)
    answers: list[AsyncResult[Any]] = [choice.AsyncResult(task_id.strip()) for task_id in task_ids]
    if wait:
        _wait(answers, timeout)

    unknown: list[str] = []

    def look() -> Picture:
        nonlocal answers, unknown
        answers, unknown = _read(choice, [answer.id for answer in answers])
        shown = [fields(answer) for answer in answers]
        is_last = all(map(_has_ended, answers))
        if len(answers) == 1:
            return Picture(lines(answers[0], traceback), shown[0], is_last)
        together: list[str] = []
        for answer in answers:
            first, *rest = lines(answer, traceback)
            together += [f"{answer.id}  {first}", *rest]
        return Picture(together, shown, is_last)

    def rest(seconds: float) -> None:
        _wait_for_one([answer.id for answer in answers if not _has_ended(answer)], choice, seconds)

    display(look, as_json, watch, every, rest)
    _report_unknown(unknown)
    return max(map(exit_code, answers), key=_GRAVITY.index)


def _has_ended(answer: AsyncResult[Any]) -> bool:
    return answer.state in READY_STATES or answer.state == UNREADABLE


def _wait_for_one(ids: list[str], app: QWorker, seconds: float) -> None:
    """Return when one of *ids* has ended, if the store can announce that, or after *seconds*."""
    if app.stores.missing_results:  # waiting would create the store
        time.sleep(seconds)
        return
    try:
        app.backend.wait(ids, seconds)
    except DamagedResult:
        pass  # the next read reports it
    except BackendError:  # the next read reports it, no sooner
        time.sleep(seconds)


def _read(app: QWorker, ids: list[str]) -> tuple[list[AsyncResult[Any]], list[str]]:
    """Return the current results with these ids, and the ids without one."""
    answers: list[AsyncResult[Any]] = [app.AsyncResult(id) for id in ids]
    stored = app.backend.read_many(ids)
    for answer in answers:
        known = stored.get(answer.id) or {"status": PENDING, "result": None}
        answer.keep({"status": UNREADABLE, "result": known} if isinstance(known, DamagedResult) else known)
    return answers, [id for id in ids if id not in stored]


def _report_unknown(ids: list[str]) -> None:
    """Explain the state PENDING of *ids* on standard error."""
    for id in ids:
        click.echo(f"Nothing is stored for {id!r:.200}: {NOT_STORED}.", err=True)


def refuse_to_ask(app: QWorker, calls: bool = False) -> None:
    """Raise NotSupported when this process can never see a result. calls: it makes the call itself."""
    backend = app.backend
    if not backend.persistent and not (calls and app.stores.sends_results):
        raise NotSupported(backend.why_none or _ONLY_THERE.format(backend.safe_url))


def refuse_missing(app: QWorker, wait: bool = False, watch: bool = False) -> None:
    """Raise ConfigurationError if results are kept in a missing file or directory.

    - wait: the caller waits for a result, which creates the file. (A store with the messages was created when
      the task was sent: if it is missing, the path is wrong.)
    - watch: the caller waits until the file exists, so nothing is raised.
    """
    path, with_broker = app.stores.missing_results, app.stores.place.with_broker
    if path is not None and not watch and (with_broker or not wait):
        setting = "broker_url" if with_broker else "result_backend"
        raise ConfigurationError(
            f"there is no {path}: no result has been stored there yet. If one has, correct {setting} "
            f"({app.conf.source(setting)}); the first result creates it",
            setting=setting,
        )


def _wait(answers: list[AsyncResult[Any]], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    for answer in answers:
        try:
            answer.get(timeout=deadline - time.monotonic(), propagate=False)
        except DamagedResult:
            pass  # reported with the others
        except ResultTimeout:
            click.echo(f"Error: no result after {timeout:g} s", err=True)
            return


def show(answer: AsyncResult[Any], as_json: bool, traceback: bool = False) -> int:
    """Print a result, and return its exit code."""
    display(lambda: Picture(lines(answer, traceback), fields(answer)), as_json)
    return exit_code(answer)


def lines(answer: AsyncResult[Any], traceback: bool = False) -> list[str]:
    """Return a result as text lines."""
    state = answer.state
    value = answer.result
    if isinstance(value, BaseException):
        trace = answer.traceback.rstrip().split("\n") if traceback and answer.traceback else []
        return [f"{state}: {type(value).__name__}: {value}", *trace]
    if state == SUCCESS:
        return [repr(value)]
    return [state if value is None else f"{state}: {value!r}"]


def fields(answer: AsyncResult[Any]) -> dict[str, Any]:
    """Return a result as JSON fields."""
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
    """Return the exit code for a result."""
    if answer.state == SUCCESS:
        return 0
    return EXIT_FAILED if answer.state in {*READY_STATES, UNREADABLE} else EXIT_NOT_READY
