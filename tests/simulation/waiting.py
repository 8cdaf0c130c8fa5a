"""waiting: replacements for ResultWatcher and the event loop that let the world step while a caller waits.

Comes from:  ``get()``, ``await`` and ``then()`` of the callers of a world.
Goes to:     the result store of their node, which is polled; the world, which steps meanwhile.
Thread:      the world's.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from qworker.backends.base import Backend
from qworker.backends.result_watcher import OUTAGE_SECONDS, final, readable
from qworker.errors import BackendError
from tests.simulation.world import Actor, Stuck, Time

LOOK = 0.25
"""Seconds between two polls."""
TICK = 1e-6
"""Seconds of the shortest wait: less might not change the time, which is a float."""
FOR_EVER = 900.0
"""A longer wait counts as endless."""


class Watcher:
    """Replaces the ResultWatcher of *backend*, including its loops and promises."""

    def __init__(self, time: Time, node: str, backend: Backend) -> None:
        self._time = time
        self._backend = backend
        self._answered_at = float("-inf")
        self._calls: dict[str, list[Callable[[Any], object]]] = {}
        self.loops = self.promises = self
        self._actor = Actor(node, "watcher", self._step, float("inf"))
        time.actors.append(self._actor)

    def mark(self) -> None:
        return None

    def wait(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = 0.5,
        looked: int | None = None,
    ) -> dict[str, Any]:
        return readable(next(self.wait_each(ids, timeout, on_interval, interval), {}))

    def wait_each(
        self,
        ids: Collection[str],
        timeout: float | None,
        on_interval: Callable[[], Any] | None = None,
        interval: float = 0.5,
    ) -> Iterator[dict[str, Any]]:
        until = self._time.now + (FOR_EVER if timeout is None else timeout and max(timeout, TICK))
        missing = list(ids)
        while missing:
            if on_interval is not None:
                on_interval()
            if found := self._look(missing):
                missing = [id for id in missing if id not in found]
                yield found
            elif self._pause(until, timeout):
                return

    def own_look(self, ids: Collection[str]) -> dict[str, Any] | None:
        try:
            found = self._backend.read_many(ids) if ids else {}
        except BackendError:
            if self._time.now >= self._answered_at + OUTAGE_SECONDS:
                raise
            return None
        if ids:
            self._answered_at = self._time.now
        return found

    def _look(self, ids: Collection[str]) -> dict[str, Any]:
        self._answered_at = self._time.now
        while (found := self.own_look(ids)) is None:
            self._time.pump(self._time.now + LOOK)
        return final(found)

    def _pause(self, until: float, timeout: float | None) -> bool:
        """Wait until the next poll; return True on timeout."""
        if self._time.now >= until:
            if timeout is None:
                raise Stuck("somebody waits for ever")
            return True
        self._time.pump(min(until, self._time.now + LOOK))
        return False

    # -- the interface of a WaiterThread --

    def call(self, task_id: str, callback: Callable[[Any], object]) -> None:
        self.call_many({task_id: callback})

    def call_many(self, callbacks: Mapping[str, Callable[[Any], object]]) -> None:
        for task_id, callback in callbacks.items():
            self._calls.setdefault(task_id, []).append(callback)
        self._actor.due = min(self._actor.due, self._time.now)

    def cancel(self, task_id: str, callback: Callable[[Any], object]) -> None:
        callbacks = self._calls.get(task_id, [])
        if callback in callbacks:
            callbacks.remove(callback)
        if not callbacks:
            self._calls.pop(task_id, None)

    def cancel_many(self, callbacks: Mapping[str, Callable[[Any], object]]) -> None:
        for task_id, callback in callbacks.items():
            self.cancel(task_id, callback)

    def ensure(self) -> None: ...

    def close(self) -> None: ...

    def _step(self) -> float | None:
        try:
            found = final(self.own_look(list(self._calls)) or {})
        except BackendError:
            return LOOK
        for task_id, each in found.items():
            for callback in self._calls.pop(task_id, []):
                callback(each)
        return LOOK if self._calls else None


class _Inline(ThreadPoolExecutor):
    """asyncio.to_thread() without a thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            future.set_exception(error)
        return future


class _Selector(selectors.DefaultSelector):
    """A selector that lets the world step while it waits."""

    time: Time
    step: Callable[[], None]
    """Raises Killed if the waiting process is dead."""

    def select(self, timeout: float | None = None) -> list[Any]:
        self.step()
        if timeout is None or timeout > 0:
            self.time.pump(self.time.now + min(LOOK, LOOK if timeout is None else timeout))
        return super().select(0)


def awaited(time: Time, coroutine: Coroutine[Any, Any, Any], step: Callable[[], None]) -> Any:
    """Return the result of *coroutine*, awaited in an event loop in the world's time. step: called often; it
    raises Killed if the waiting process is dead."""
    selector = _Selector()
    selector.time, selector.step = time, step
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: time.now  # type: ignore[method-assign]
    loop.set_default_executor(_Inline(1))
    until = time.now + FOR_EVER

    async def limited() -> Any:
        try:
            async with asyncio.timeout_at(until):
                return await coroutine
        except TimeoutError:
            raise Stuck("somebody awaits for ever") from None

    try:
        return loop.run_until_complete(limited())
    finally:
        loop.close()
