"""Awaiting: waits for a result without blocking the event loop.

Comes from:  ``await result``, and ``gathering`` for several results.
Goes to:     the ResultWatcher of the result store, whose thread calls back into the loop.
Thread:      the event loop's. asyncio is imported on first use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Collection
from functools import partial
from typing import TYPE_CHECKING

from qworker.backends.result_watcher import SLOWEST, ResultWatcher, final
from qworker.errors import DamagedResult

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Found, Meta


async def ended(watcher: ResultWatcher, task_id: str) -> Meta:
    """Return the metadata of *task_id* once it has ended. Raises DamagedResult if it cannot be read,
    BackendError if the store is unavailable."""
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Meta] = loop.create_future()

    def settle(found: Found | Exception) -> None:
        if future.done():
            return
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)

    def call_back(found: Found | Exception) -> None:
        try:
            loop.call_soon_threadsafe(settle, found)
        except RuntimeError:
            pass  # the loop has ended

    waiter = watcher.loops
    waiter.call(task_id, call_back)
    try:
        return await future
    finally:
        waiter.cancel(task_id, call_back)


async def look(watcher: ResultWatcher, ids: Collection[str]) -> dict[str, Found]:
    """Return the metadata of those of *ids* that have ended; wait if the store has just become unavailable.
    Raises BackendError if it does not come back."""
    import asyncio

    while (found := await asyncio.to_thread(watcher.own_look, ids)) is None:
        await asyncio.sleep(SLOWEST)
    return final(found)


async def each_ended(
    backend: Backend, ids: Collection[str], timeout: float | None = None
) -> AsyncGenerator[dict[str, Found], None]:
    """Yield the metadata of *ids* as they end, until all have ended or *timeout* seconds have passed.

    Raises BackendError if the store is unavailable.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    arrived: deque[tuple[str, Found | Exception]] = deque()
    something = asyncio.Event()

    def call_back(task_id: str, found: Found | Exception) -> None:
        arrived.append((task_id, found))
        if len(arrived) == 1:  # otherwise the loop was notified already
            try:
                loop.call_soon_threadsafe(something.set)
            except RuntimeError:
                pass  # the loop has ended

    waiter = backend.watcher.loops
    missing = {task_id: partial(call_back, task_id) for task_id in ids}
    deadline = None if timeout is None else loop.time() + timeout
    waiter.call_many(missing)
    try:
        while missing:
            try:
                left = None if deadline is None else max(0.0, deadline - loop.time())
                await asyncio.wait_for(something.wait(), left)
            except TimeoutError:
                if found := final(await asyncio.to_thread(backend.read_many, list(missing))):
                    yield found  # ended at the last moment
                return
            something.clear()
            ended: dict[str, Found] = {}
            while arrived:
                task_id, each = arrived.popleft()
                if isinstance(each, Exception) and not isinstance(each, DamagedResult):
                    raise each
                missing.pop(task_id, None)
                ended[task_id] = each
            if ended:
                yield ended
    finally:
        waiter.cancel_many(missing)
