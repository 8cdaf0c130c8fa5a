"""Waiting: blocks the caller until a result is available, and logs if it may never be.

Comes from:  ``result.get()``.
Goes to:     the result store; once to the broker, to check whether a worker is running.
Thread:      the caller's. ``awaiting`` is for callers that must not block.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.backends.result_watcher import SLOWEST, final
from qworker.contracts import App
from qworker.errors import BackendError, DamagedResult, ResultTimeout
from qworker.interrupts import reraise_interrupt
from qworker.message.context import is_in_worker

if TYPE_CHECKING:
    from qworker.backends.base import Found, Meta

logger = logging.getLogger(__name__)

HINT_AFTER = 2.0
"""Seconds of waiting after which missing workers are logged."""

_LONGEST_LOOK = 3600.0

_joins_allowed: ContextVar[bool] = ContextVar("qworker_joins_allowed", default=False)


@contextmanager
def allow_join_result() -> Iterator[None]:
    """Allow get() to wait inside a task, in this block. Only safe if another worker process runs the awaited
    task."""
    token = _joins_allowed.set(True)
    try:
        yield
    finally:
        _joins_allowed.reset(token)


def refuse_to_wait_in_a_task() -> None:
    """Raise RuntimeError inside a worker's task, except in a block of allow_join_result()."""
    if not is_in_worker() or _joins_allowed.get():
        return
    raise RuntimeError(
        "a task must not wait for the result of another: when every worker process waits, none is left to "
        "run it. "
        "Use link= to continue with the result, or get(disable_sync_subtasks=False) if another worker runs it"
    )


def timeout_seconds(timeout: float | timedelta | None) -> float | None:
    """Return *timeout* in seconds, 0 if negative, None for no limit. Raises TypeError for an invalid
    value."""
    if timeout is None:
        return None
    length = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(length, bool) or not isinstance(length, int | float) or math.isnan(length):
        raise TypeError(
            f"timeout must be a number of seconds, a timedelta, or None for no limit, not {timeout!r}"
        )
    return max(0.0, length)


def wait_for(
    app: App,
    task_id: str,
    queue: str | None,
    timeout: float | None,
    interval: float = 0.5,
    on_interval: Callable[[], Any] | None = None,
    looked: int | None = None,
    hinted: bool = False,
) -> Meta:
    """Return the metadata of the task once it has ended.

    - timeout: seconds, None for no limit; then ResultTimeout is raised.
    - looked: the watcher's mark() from before the result was read.
    - hinted: missing workers were already logged.
    """
    clock, backend = app.clock, app.backend
    started = clock.monotonic()
    while True:
        waited = clock.monotonic() - started
        left = None if timeout is None else timeout - waited
        if left is not None and left <= 0:
            meta = backend.get(task_id)
            state = states.PENDING if meta is None else meta["status"]
            if meta is not None and state in states.READY_STATES:
                return meta  # ended at the last moment
            advice = "see qworker doctor" if state == states.PENDING else "it may still be running"
            raise ResultTimeout(
                f"task {task_id} has not ended within {timeout:g} s (state: {state}); {advice}"
            )
        until_hint = None if hinted else max(0.0, HINT_AFTER - waited) or 0.01
        look = min(part for part in (left, until_hint, _LONGEST_LOOK) if part is not None)
        wait = backend.wait if looked is None else partial(backend.watcher.wait, looked=looked)
        found, looked = wait([task_id], look, on_interval=on_interval, interval=interval), None
        if task_id in found:
            return found[task_id]
        if not hinted and clock.monotonic() - started >= HINT_AFTER:
            hinted = True
            hint(app, task_id, queue)


def look(app: App, ids: Collection[str], until: float | None = None) -> dict[str, Found]:
    """Return the metadata of those of *ids* that have ended; wait if the store has just become unavailable.

    until: the monotonic time to give up. Raises BackendError if the store is not back by then.
    """
    clock, watcher = app.clock, app.backend.watcher
    while (found := watcher.own_look(ids)) is None:
        if until is not None and clock.monotonic() >= until:
            return final(app.backend.read_many(ids))
        clock.sleep(SLOWEST)
    return final(found)


def all_of(first: Callable[[], Any], second: Callable[[], Any] | None) -> Callable[[], Any]:
    """Return a function that calls *first*, and *second* unless it is None."""

    def both() -> None:
        first()
        if second is not None:
            second()

    return both


def state_changes(app: App, task_id: str, notify: Callable[[Meta], Any]) -> Callable[[], None]:
    """Return a function that reads the task's state, and calls notify(metadata) if it has changed and is not
    final."""
    last: list[Meta] = []

    def notify_if_new() -> None:
        try:
            meta = app.backend.get(task_id)
        except BackendError as error:
            if isinstance(error, DamagedResult):
                raise
            return  # if it persists, waiting raises it
        if meta is not None and [meta] != last and meta["status"] not in states.READY_STATES:
            last[:] = [meta]
            notify(meta)

    return notify_if_new


def hint(app: App, task_id: str, queue: str | None) -> None:
    """Log if no worker runs, or none consumes *queue*, because there may never be a result. Never raises."""
    try:
        if (presence := app.broker.presence) is None:
            return
        workers = presence.admin.workers()
    except Exception as error:  # noqa: BLE001 - a failed hint must not end the waiting
        reraise_interrupt(error)
        logger.debug("cannot determine whether workers are running: %s", error)
        return
    consumed = {name for worker in workers for name in worker.queues}
    if queue is not None and queue not in consumed:
        logger.warning(
            "No worker is consuming queue %s: task %s waits until one does (qworker start -Q %s)",
            queue,
            task_id,
            queue,
        )
    elif not workers:
        logger.warning("No worker is running on this broker: task %s waits until one does", task_id)
