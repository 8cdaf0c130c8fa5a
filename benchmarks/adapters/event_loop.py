"""For peers whose calls are coroutines: one event loop for the producer, and the bodies as coroutines for the
worker."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any

from benchmarks import bodies


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Made on first use, for the worker imports the adapters too."""
    return asyncio.new_event_loop()


def wait(call: Awaitable[Any]) -> Any:
    """Run one call of the producer to its end."""

    async def done() -> Any:
        return await call

    return _loop().run_until_complete(done())


def body(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The body of that name as a coroutine function; a pause lets the others of its process run."""
    if name == "pause":
        return bodies.async_pause
    function = getattr(bodies, name)

    async def run(*args: Any) -> Any:
        return function(*args)

    run.__name__ = run.__qualname__ = name
    return run
