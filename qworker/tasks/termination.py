"""Termination: ends calls that did not run, or whose process died.

Comes from:  a pool child, or a thread of the threads pool, which gets the call and how it ended.
Goes to:     errbacks, the calls that would have followed, and back as an Outcome.
Thread:      one that runs tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from qworker import states
from qworker.contracts import App, Task
from qworker.errors import DamagedResult, NotSupported, Reject, Retry
from qworker.message.context import Context, message_headers, pop, push
from qworker.message.exceptions import exception_of
from qworker.message.marks import run_in
from qworker.results.result import result_from_tuple
from qworker.safe_repr import safe_repr
from qworker.tasks import copies, followup
from qworker.tasks.execution import Run, cut_short, ignores_result, store_now
from qworker.tasks.outcome import (
    COPY,
    EXPIRED,
    FAILURE,
    LOST,
    NOT_STARTED,
    POISONED,
    REQUEUED,
    REVOKED,
    TERMINATED,
    TIME_LIMIT,
    UNCONFIRMED,
    Fields,
    Followed,
    Outcome,
)
from qworker.tasks.unsent import is_away
from qworker.transports.lease import ResultRow

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Seconds for which a child waits if the broker is unavailable, before it may get the same call again."""
_RAN = frozenset([LOST, TIME_LIMIT, TERMINATED])
"""Ends of a task that had begun to run."""
_DROPPED = frozenset([REVOKED, EXPIRED, POISONED])
"""Ends of a task that does not run, but may have, if its message is delivered again."""


def report(
    app: App,
    task: Task,
    context: Context,
    kind: str,
    text: str,
    state: str,
    error: dict[str, Any],
    runs: bool = True,
    sends: bool = True,
) -> Outcome:
    """End a task that did not run, or whose process died: call its errbacks, and fail the calls after it.

    - kind, text: of the outcome.
    - state, error: to be stored; see also error_of_chord().
    - runs: False runs no errback and no hook here, because they may have killed the previous processes.
    - sends: False sends no callbacks or errbacks either.

    A failure that the killed process has stored stays, with its error, which errbacks may have been given.

    Return the outcome. It is SUCCESS if the success was stored before the process was killed; then the
    callbacks are sent. It is NOT_STARTED if a call cannot be sent now; then a child gets it again later. It
    is RETRY, without a runtime, if the task's hook has sent a next attempt.
    """
    error, traceback = followup.error_of_chord(app, kind, message_headers(context)) or error, ""
    token = push(context, task)
    try:
        if kind in (*_DROPPED, UNCONFIRMED) and (copy := copies.refused(app, task, context)) is not None:
            return (
                copy._replace(reported=True) if copy.kind == COPY else _later(app, task, context, copy.text)
            )
        has_run = kind in _RAN or (kind in _DROPPED and (context.delivery_info or {}).get("redelivered"))
        if sends and kind == UNCONFIRMED and _has_ended_elsewhere(app, task, context, state, error):
            return Outcome(COPY, None, "another worker has run it", reported=True)
        if sends and has_run and (context.callbacks or context.errbacks or task.sees_its_end):
            meta = _stored(app, task, context) or {}
            if meta.get("status") in states.READY_STATES:
                context.children = _children(app, meta)
            if meta.get("status") == states.SUCCESS and (context.callbacks or task.sees_its_end):
                return _go_on(app, task, context, meta["result"], runs)
            if meta.get("status") == states.FAILURE and _is_error(meta["result"]):
                error, stored_text = meta["result"], meta.get("traceback")
                traceback = stored_text if isinstance(stored_text, str) else ""
                if state != states.FAILURE:
                    kind, state = FAILURE, states.FAILURE
                    text = safe_repr(exception_of({"status": state, "result": error}))
        row = None
        if runs and task.has_on_terminated:
            _call_hook(task, context, state, error)
        if not ignores_result(context, task) or task.store_errors_even_if_ignored:
            row = _row(app, context, state, error, traceback)
        stored = False
        # As in Celery, none are called for revoked tasks.
        if sends and context.errbacks and state == states.FAILURE:
            stored = store_now(app, row)
            cause = exception_of({"status": state, "result": error})
            followup.failed(app, context, cause, traceback, again=True, runs=runs)
        after = _after(app, context, state, error, traceback)
        return Outcome(kind, None, text, None, row, *after, stored, reported=True)
    except Retry as directive:
        return cut_short(app, task, context, directive, time.perf_counter())._replace(runtime=None)
    except Exception as problem:
        if is_away(problem) or (isinstance(problem, Reject) and problem.requeue):
            return _later(app, task, context, problem)
        logger.exception("the end of task %s[%s] could not be reported", task.name, context.id)
        after = (), ()
        try:  # otherwise the calls after it would wait forever
            after = _after(app, context, state, error, traceback)
        except Exception:
            logger.exception("the calls after task %s[%s] could not be ended", task.name, context.id)
        return Outcome(kind, None, text, None, None, *after, reported=True)
    finally:
        pop(token)


def _row(app: App, context: Context, state: str, error: dict[str, Any], traceback: str) -> ResultRow | None:
    """Return the result of the task; None if it cannot be written: then its worker makes a shorter one."""
    try:
        meta = app.backend.meta(context.id, state, error, traceback or None, context)
        return app.backend.row(context.id, meta)
    except Exception:
        logger.exception("the result of task %s[%s] cannot be written", context.task, context.id)
        return None


def _after(
    app: App, context: Context, state: str, error: dict[str, Any], traceback: str
) -> tuple[tuple[Followed, ...], Fields]:
    """Return the results of the calls that fail with a task, and its parts of a chord in Celery's format."""
    follow = followup.downstream_failures(app, context, error, traceback)
    return follow, followup.chord_parts(app, context, state, error) if context.chord else ()


def _later(app: App, task: Task, context: Context, problem: object) -> Outcome:
    logger.error("the end of task %s[%s] cannot be reported now: %s", task.name, context.id, problem)
    app.clock.sleep(AGAIN_SECONDS)
    return NOT_STARTED


def _call_hook(task: Task, context: Context, state: str, error: dict[str, Any]) -> None:
    try:
        task.on_terminated(context, state, error)
    except Exception as problem:
        if (
            isinstance(problem, Retry)
            or (isinstance(problem, Reject) and problem.requeue)
            or is_away(problem)
        ):
            raise
        logger.exception("on_terminated() of task %s[%s] raised", task.name, context.id)


def _is_error(stored: object) -> bool:
    """Return whether *stored* is an error, and not something else that others have written."""
    return isinstance(stored, dict) and {"exc_type", "exc_message"} <= stored.keys()


def _has_ended_elsewhere(
    app: App, task: Task, context: Context, state: str, error: Mapping[str, Any]
) -> bool:
    """Return whether another worker has stored the end of the task: any but the end *error* in *state*, which
    this report may have stored when it was tried before."""
    meta = _stored(app, task, context)
    if meta is None or meta["status"] not in states.READY_STATES:
        return False
    found = meta["result"]
    names = ("exc_type", "exc_message")
    own = isinstance(found, Mapping) and all(
        _plain(found.get(name)) == _plain(error.get(name)) for name in names
    )
    return not (own and meta["status"] == state)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _stored(app: App, task: Task, context: Context) -> Mapping[str, Any] | None:
    """Return the stored result of the task. None: nothing is stored, or the result may belong to an earlier
    call with the same id, as the mark RUN shows."""
    if ignores_result(context, task) or run_in(message_headers(context)):
        return None
    try:
        return app.backend.get(context.id or "")
    except (DamagedResult, NotSupported):  # NotSupported: no results are kept
        return None
    except Exception as problem:  # of a store that others have written
        if is_away(problem):
            raise
        logger.exception("the result of task %s[%s] cannot be read", task.name, context.id)
        return None


class _Children(list[Any]):
    """The children in a stored result, to which the same calls are not added again."""

    def extend(self, results: Iterable[Any]) -> None:
        known = {child.id for child in self}
        super().extend(child for child in results if child.id not in known)


def _children(app: App, meta: Mapping[str, Any]) -> _Children:
    """Return the results of the calls that the killed process had made when it stored *meta*."""
    try:
        return _Children(result_from_tuple(child, app) for child in meta.get("children") or ())
    except (TypeError, ValueError):  # others have written it
        return _Children()


def _go_on(app: App, task: Task, context: Context, value: Any, hooks: bool) -> Outcome:
    """Send the calls after a task that succeeded with *value*. hooks: whether its hooks are called."""
    run = Run(app, task, context)
    run.start, run.stored = time.perf_counter(), True
    outcome = run.outcome_of(run.returned if hooks else run.succeeded, value)
    if outcome.kind == REQUEUED:
        return _later(app, task, context, outcome.text)
    return outcome._replace(runtime=None, reported=True)
