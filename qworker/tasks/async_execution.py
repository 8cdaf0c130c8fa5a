"""Async execution: one run of an ``async def`` task, its limits and its cancellation.

Comes from:  the event loop of a pool child or of the threads pool, or an eager call.
Goes to:     back as an Outcome, like execution.py.
Thread:      the event loop's.

A cancellation may come from the worker, the task's own code, a library that leaks a timeout, or another task
that cancels all tasks of the loop. Only the worker's cancellations end the task in a special way; all others
are failures. CancelledError is not an Exception: like SystemExit, it is retried only if ``autoretry_for``
names it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from qworker.contracts import App, Task
from qworker.errors import SoftTimeLimitExceeded, TimeLimitExceeded
from qworker.message.context import Context
from qworker.tasks import copies
from qworker.tasks.execution import Run
from qworker.tasks.outcome import Outcome

if TYPE_CHECKING:
    from qworker.message.protocol import Body

CANCELLED_ITSELF = "cancelled by its own code or a library that it uses, not by the worker"


async def execute_async(
    app: App,
    task: Task,
    context: Context,
    body: Body,
    soft: float | None = None,
    hard: float | None = None,
    disarm: Callable[[], None] = lambda: None,
    cancelled: Callable[[], BaseException | None] = lambda: None,
) -> Outcome:
    """Run *task* for *context*; return the outcome.

    - soft, hard: limits in seconds; None for no limit. Both cancel the task.
    - disarm: called as soon as the body has ended.
    - cancelled: returns the reason if the worker has cancelled the task (Interrupted or Terminated), else
      None.
    """
    import asyncio  # here, because it takes 30 ms and 3 MB

    if (copy := copies.refused(app, task, context)) is not None:
        return copy
    run = Run(app, task, context)
    try:
        run.enter()
        try:
            # Both, so that a task that handles the soft limit is cancelled again at the hard one.
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
        return run.outcome_of(run.raised, by_worker or error)
    except BaseException as error:  # noqa: BLE001 - as in execute()
        disarm()
        return run.outcome_of(run.raised, error)
    else:
        return run.outcome_of(run.returned, value)
    finally:
        run.leave()
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            with suppress(asyncio.CancelledError):  # the body cancelled itself without awaiting anything
                await asyncio.sleep(0)
