"""EventLoop: runs ``async def`` tasks, in a pool child or in a worker without children.

Comes from:  the child's main loop, or the threads pool.
Goes to:     asyncio, in a separate thread that starts with the first async task.
Thread:      start(), watch(), cancel() and cancel_all() from any; the runs belong to the loop's thread.

The loop belongs to the worker: a task that stops it, or raises SystemExit in it, ends no other task.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

logger = logging.getLogger(__name__)

MOST_EARLY = 1000
"""Maximum number of cancellations kept for tasks that have not begun."""


class AsyncRun:
    """One task on the loop.

    - key: the caller's identifier.
    - make: returns its coroutine.
    - cancelled: the reason if the worker has cancelled it. None: any cancellation is the task's own.
    """

    __slots__ = ("begun", "cancelled", "key", "make", "task")

    def __init__(self, key: Hashable, make: Callable[[AsyncRun], Coroutine[Any, Any, None]]) -> None:
        self.key = key
        self.make = make
        self.cancelled: BaseException | None = None  # the loop's thread, as all below
        self.begun = False
        self.task: Any = None

    async def go(self) -> None:
        self.begun = True
        await self.make(self)


class EventLoop:
    def __init__(self) -> None:
        import asyncio  # about 30 ms and 3 MB, saved in a process without async tasks

        self._loop = asyncio.new_event_loop()
        self._runs: dict[Hashable, AsyncRun] = {}  # the loop's thread, as all below
        self._early: dict[Hashable, BaseException] = {}
        """The latest cancellations of tasks that had not begun, or had just ended."""
        self._stopped = False
        threading.Thread(target=self._run, name="async tasks", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._loop.run_forever()
                except BaseException:  # asyncio reraises SystemExit and KeyboardInterrupt of any coroutine
                    logger.exception("something started by an async task raised this; the loop continues")
        finally:
            self._loop.close()

    def start(self, key: Hashable, make: Callable[[AsyncRun], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine returned by *make* concurrently with the others."""
        self._loop.call_soon_threadsafe(self._begin, AsyncRun(key, make))

    def _begin(self, run: AsyncRun) -> None:
        self._runs[run.key] = run
        run.task = self._loop.create_task(run.go())
        run.task.add_done_callback(lambda _: self._done(run))
        if self._early and (error := self._early.pop(run.key, None)) is not None:
            self._cancel(run.key, error)

    def _done(self, run: AsyncRun) -> None:
        if run.begun:
            self._runs.pop(run.key, None)
        else:  # cancelled before its first step, by a task that cancels all tasks of the loop
            self._begin(run)

    def watch(self, file: int, on_data: Callable[[bytes], None]) -> None:
        """Call *on_data* on the loop's thread with all data from the pipe *file*, until it is closed."""

        def read() -> None:
            data = os.read(file, 4096)
            if data:
                on_data(data)
            else:
                self._loop.remove_reader(file)

        self._loop.call_soon_threadsafe(self._loop.add_reader, file, read)

    def cancel(self, key: Hashable, error: BaseException) -> None:
        """Cancel a run for the reason *error*. The order may overtake the task, which is then cancelled when
        it begins."""
        self._loop.call_soon_threadsafe(self._cancel, key, error)

    def cancel_all(self, error: BaseException) -> None:
        """Cancel all runs."""
        self._loop.call_soon_threadsafe(self._cancel_all, error)

    def _cancel_all(self, error: BaseException) -> None:
        for key in list(self._runs):
            self._cancel(key, error)

    def _cancel(self, key: Hashable, error: BaseException) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.cancelled = error
            self._loop.call_soon(run.task.cancel)  # not before its first step, which is already scheduled
            return
        self._early[key] = error
        if len(self._early) > MOST_EARLY:
            del self._early[next(iter(self._early))]

    def stop(self) -> None:
        """End the thread; runs are abandoned. Safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
