"""EventLoop: where ``async def`` tasks run, in a pool child or in a worker without children.

Comes from:  the child's loop, or the threads pool.
Goes to:     asyncio, in a thread of its own that is started with the first async task.
Thread:      start() and cancel_all() from any; the set of tasks belongs to the loop's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any


class EventLoop:
    def __init__(self) -> None:
        import asyncio  # some 30 ms and 3 MB that a process without async tasks does not pay

        self._loop = asyncio.new_event_loop()
        self._tasks: set[Any] = set()  # the loop's thread
        self._stopped = False
        threading.Thread(target=self._run, name="async tasks", daemon=True).start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run *coroutine* beside the others."""
        self._loop.call_soon_threadsafe(self._begin, coroutine)

    def _begin(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel_all(self) -> None:
        """Cancel everything that runs."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])

    def stop(self) -> None:
        """End the thread; what runs is left where it is. Safe to call twice."""
        if not self._stopped:
            self._stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
