"""EventLoop: where ``async def`` tasks run, in a pool child or in a worker without children.

Comes from:  the child's loop, or the threads pool.
Goes to:     asyncio, in a thread of its own that is started with the first async task.
Thread:      start(), watch(), cancel() and cancel_all() from any; the runs belong to the loop's thread.

The loop is the worker's and outlives whatever a task does to it: one that stops it, or lets SystemExit into
it, ends nobody else's task.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

logger = logging.getLogger(__name__)

MOST_EARLY = 1000
"""Orders to cancel that are kept for tasks which have not begun."""


class AsyncRun:
    """One task on the loop.

    - key: the caller's name for it.
    - make: returns its coroutine.
    - cancelled: with what the worker has cancelled it. None: it has not, and whatever cancels it then is the
      task's own doing.
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
        import asyncio  # some 30 ms and 3 MB that a process without async tasks does not pay

        self._loop = asyncio.new_event_loop()
        self._runs: dict[Hashable, AsyncRun] = {}  # the loop's thread, as all below
        self._early: dict[Hashable, BaseException] = {}
        """The latest orders to cancel what had not begun, or had just ended."""
        self._stopped = False
        threading.Thread(target=self._run, name="async tasks", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self._stopped:
                try:
                    self._loop.run_forever()
                except (
                    BaseException
                ):  # asyncio lets SystemExit and KeyboardInterrupt of any coroutine through
                    logger.exception("something that an async task started raised this; the loop goes on")
        finally:
            self._loop.close()

    def start(self, key: Hashable, make: Callable[[AsyncRun], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine that *make* returns beside the others."""
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
        else:  # cancelled before its first step, by a neighbour that cancels all that it finds
            self._begin(run)

    def watch(self, file: int, heard: Callable[[bytes], None]) -> None:
        """Call *heard* on the loop's thread with whatever comes through the pipe *file*, until it is
        closed."""

        def read() -> None:
            data = os.read(file, 4096)
            if data:
                heard(data)
            else:
                self._loop.remove_reader(file)

        self._loop.call_soon_threadsafe(self._loop.add_reader, file, read)

    def cancel(self, key: Hashable, error: BaseException) -> None:
        """Cancel one, for the reason *error*; one that has not begun yet as soon as it does, for the order
        may overtake the task."""
        self._loop.call_soon_threadsafe(self._cancel, key, error)

    def cancel_all(self, error: BaseException) -> None:
        """Cancel everything that runs."""
        self._loop.call_soon_threadsafe(self._cancel_all, error)

    def _cancel_all(self, error: BaseException) -> None:
        for key in list(self._runs):
            self._cancel(key, error)

    def _cancel(self, key: Hashable, error: BaseException) -> None:
        run = self._runs.get(key)
        if run is not None:
            run.cancelled = error
            self._loop.call_soon(run.task.cancel)  # not before its first step, which is already in the line
            return
        self._early[key] = error
        if len(self._early) > MOST_EARLY:
            del self._early[next(iter(self._early))]

    def stop(self) -> None:
        """End the thread; what runs is left where it is. Safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
