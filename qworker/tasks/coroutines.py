"""Coroutines: how code that is not async runs one to its end.

Comes from:  ``eager.py``; a call after a task that is a coroutine (``followup.py``, ``builtins.py``).
Goes to:     an event loop of its own.
Thread:      the caller's, or a new one if the caller is in an event loop.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* here and return its value. The caller waits, even in an event loop."""
    import asyncio  # here, because it takes 30 ms

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # The caller's thread runs an event loop, and cannot run another.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, coroutine).result()
