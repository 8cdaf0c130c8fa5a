"""Awaiting: an event loop goes on while a result is waited for.

Comes from:  ``await result``.
Goes to:     the ResultWatcher of the result store, whose thread calls back into the loop.
Thread:      the event loop's. asyncio is imported by who awaits, not by who imports this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qworker.backends.base import Backend, Found, Meta


async def ended(backend: Backend, task_id: str) -> Meta:
    """Return the metadata of *task_id* once it has ended. Raises DamagedResult when it cannot be read,
    BackendError when the store does not answer."""
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

    attendant = backend.watcher.loops
    attendant.call(task_id, call_back)
    try:
        return await future
    finally:
        attendant.cancel(task_id, call_back)
