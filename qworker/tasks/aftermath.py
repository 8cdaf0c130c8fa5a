"""Aftermath: what follows a call that did not come to run, or whose process died.

Comes from:  a pool child, or a thread of the threads pool, which is given such a call with how it ended.
Goes to:     errbacks, what would have come after it, and back as an Outcome.
Thread:      whichever runs tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.context import Context, message_headers, pop, push
from qworker.errors import DamagedResult, NotSupported, Reject, Retry
from qworker.message.exceptions import exception_of
from qworker.message.marks import run_in
from qworker.tasks import followup
from qworker.tasks.execution import Run, cut_short, ignores_result, store_now
from qworker.tasks.outcome import LOST, NOT_STARTED, REQUEUED, TERMINATED, TIME_LIMIT, Outcome
from qworker.tasks.unsent import is_away

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How long a child waits for a broker that is away, so as not to be given the same at once, for ever."""
_RAN = frozenset([LOST, TIME_LIMIT, TERMINATED])
"""Ends of a task that had begun to run."""


def tell(
    app: QWorker,
    task: Task[..., Any],
    context: Context,
    kind: str,
    text: str,
    state: str,
    error: dict[str, Any],
    aloud: bool = True,
) -> Outcome:
    """End a task that did not come to run, or whose process died: tell its errbacks, and what would have come
    after it.

    - kind, text: of the outcome. state, error: what is stored. aloud: False, and no errback or other code of
      the user's is called, which may have killed those who did.

    A task whose success was stored before its process was killed has succeeded: its callbacks are sent, and
    the outcome is SUCCESS.
    NOT_STARTED when that cannot be told for now: a child is given it again, after a pause. RETRY, without a
    runtime, when the task has sent its next attempt on hearing of it: then it has not ended.
    """
    token = push(context, task)
    try:
        if aloud and kind in _RAN and (meta := _success(app, task, context)) is not None:
            return _go_on(app, task, context, meta["result"])
        row = None
        if aloud and task.hears_of_ends:
            task.heard_of_end(context, state, error)
        if not ignores_result(context, task) or task.store_errors_even_if_ignored:
            meta = app.backend.meta(context.id, state, error, context=context)
            row = app.backend.row(context.id, meta)
        stored = False
        if aloud and context.errbacks and state == states.FAILURE:  # Celery calls none for what was revoked
            stored = store_now(app, row)
            cause = exception_of({"status": state, "result": error})
            followup.failed(app, context, cause, "", again=True)
        follow = followup.doomed(app, context, error, "")
        parts = followup.chord_parts(app, context, state, error) if context.chord else ()
        return Outcome(kind, None, text, None, row, follow, parts, stored, told=True)
    except Retry as directive:
        return cut_short(app, task, context, directive, time.perf_counter())._replace(runtime=None)
    except Exception as problem:
        if is_away(problem) or (isinstance(problem, Reject) and problem.requeue):
            logger.error("the end of task %s[%s] cannot be told for now: %s", task.name, context.id, problem)
            app.clock.sleep(AGAIN_SECONDS)
            return NOT_STARTED
        logger.exception("the end of task %s[%s] could not be told", task.name, context.id)
        return Outcome(kind, None, text, told=True)
    finally:
        pop(token)


def _success(app: QWorker, task: Task[..., Any], context: Context) -> Mapping[str, Any] | None:
    """What is stored of a task that was killed between its end and its callbacks, before which its success is
    stored; None when it was not. An id that was called before, as the mark RUN says, may have the success of
    another call."""
    if not context.callbacks or ignores_result(context, task) or run_in(message_headers(context)):
        return None
    try:
        meta = app.backend.get(context.id or "")
    except (DamagedResult, NotSupported):  # NotSupported: no results are kept
        return None
    return meta if meta is not None and meta["status"] == states.SUCCESS else None


def _go_on(app: QWorker, task: Task[..., Any], context: Context, value: Any) -> Outcome:
    """Send what follows the task, which has succeeded with *value*."""
    run = Run(app, task, context)
    run.start, run.stored = time.perf_counter(), True
    outcome = run.tell(run.returned, value)
    if outcome.kind == REQUEUED:
        logger.error("what follows task %s[%s] is sent later: %s", task.name, context.id, outcome.text)
        app.clock.sleep(AGAIN_SECONDS)
        return NOT_STARTED
    return outcome._replace(runtime=None)
