"""Async execution: one run of one ``async def`` task; its limits, and what a cancellation of it means.

Comes from:  the event loop of a pool child or of the threads pool, or an eager call.
Goes to:     back as an Outcome, as in execution.py.
Thread:      the event loop's.

A task may be cancelled by anybody: by its own code, by a library that lets a timeout leak, by a neighbour
that cancels all that it finds. Only the worker knows whether it was the worker, so it is asked; whatever else
cancels a task has made it fail. (CancelledError is no Exception: like SystemExit it is retried only where
``autoretry_for`` names it.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from qworker.context import Context
from qworker.errors import SoftTimeLimitExceeded, TimeLimitExceeded
from qworker.tasks import copies
from qworker.tasks.execution import Run
from qworker.tasks.outcome import Outcome

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.message.protocol import Body
    from qworker.tasks.task import Task

CANCELLED_ITSELF = "cancelled by its own code or a library that it uses, not by the worker"


async def execute_async(
    app: QWorker,
    task: Task[..., Any],
    context: Context,
    body: Body,
    soft: float | None = None,
    hard: float | None = None,
    disarm: Callable[[], None] = lambda: None,
    cancelled: Callable[[], BaseException | None] = lambda: None,
) -> Outcome:
    """Run *task* for *context*; return how it ended.

    - soft, hard: limits in seconds; None for no limit. Both cancel the task.
    - disarm: called as soon as the body is done.
    - cancelled: tells with what the worker has cancelled the task (Interrupted or Terminated); None when it
      has not.
    """
    import asyncio  # some 30 ms and 3 MB that a process without async tasks does not pay

    if (copy := copies.refused(app, task, context)) is not None:
        return copy
    run = Run(app, task, context)
    try:
        run.enter()
        try:
            # Both, so that a task that takes its time over the soft one is cancelled again at the hard one.
            async with asyncio.timeout(hard or None) as last, asyncio.timeout(soft or None) as first:
                value = await run.call(body)
                disarm()
        except TimeoutError:
            if last.expired():
                raise TimeLimitExceeded(hard) from None
            if first.expired():
                raise SoftTimeLimitExceeded(soft) from None
            raise
    except asyncio.CancelledError as error:
        disarm()
        by_worker = cancelled()
        if by_worker is None and not error.args:
            error.args = (CANCELLED_ITSELF,)
        return run.tell(run.raised, by_worker or error)
    except BaseException as error:  # noqa: BLE001 - as in execute()
        disarm()
        return run.tell(run.raised, error)
    else:
        return run.tell(run.returned, value)
    finally:
        run.leave()
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            with suppress(asyncio.CancelledError):  # that the body ordered, and did not wait for
                await asyncio.sleep(0)
