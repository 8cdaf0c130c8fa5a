"""Coroutines: how code that is not async runs one to its end.

Comes from:  eager calls, and errbacks that run in place.
Goes to:     an event loop made for it.
Thread:      the caller's, or one made for it where the caller is in an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* here and return what it returns. The caller waits, also one in an event loop."""
    import asyncio  # here, because it costs 30 ms

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # The caller is in an event loop, and another cannot run in its thread.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, coroutine).result()
