"""Waiting for results without standing in anybody's way: for asyncio, and for promises.

Comes from:  ``await result`` and ``result.then(…)``.
Goes to:     the backend: one reader for all who wait in a loop, one thread for all promises of an app.
asyncio is imported by who awaits, not by who imports this.
Thread:      LoopWaiter: the event loop's. Watcher: a thread of its own, while there is anything to watch.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from qworker import states
from qworker.backends.base import POLL_SECONDS, Backend, Found, Meta
from qworker.errors import BackendError, DamagedResult
from qworker.results import callbacks

if TYPE_CHECKING:
    import asyncio

    from qworker.app import QWorker
    from qworker.results.result import AsyncResult

logger = logging.getLogger(__name__)

_WATCH_SECONDS = 0.1
"""How long the watcher may take to notice that there is one more result to watch."""


class _Awaited:
    """A result that somebody in the loop awaits."""

    __slots__ = ("count", "future")

    def __init__(self, future: asyncio.Future[Meta]) -> None:
        self.future = future
        self.count = 0


class LoopWaiter:
    """Waits for results in one event loop, for all who await there."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop) -> None:
        self._backend = backend
        self._awaited: dict[str, _Awaited] = {}
        self._bell = backend.bell()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: asyncio.Task[None] | None = None
        if backend.remote:
            import asyncio

            self._stir = asyncio.Event()
        if self._bell is not None:
            weakref.finalize(loop, self._bell.close)

    async def meta(self, task_id: str) -> Meta:
        """Return the metadata of *task_id* once it has ended. Raises DamagedResult when it cannot be read,
        BackendError when the store does not answer."""
        import asyncio

        loop = asyncio.get_running_loop()
        awaited = self._awaited.get(task_id)
        if awaited is None:
            awaited = self._awaited[task_id] = _Awaited(loop.create_future())
            self._begin(loop)
            if self._backend.remote:
                self._stir.set()
            elif self._bell is not None:
                self._look([task_id])
        awaited.count += 1
        try:
            # Several may await the same result: who gives up must not take it from the others.
            return await asyncio.shield(awaited.future)
        finally:
            awaited.count -= 1
            if not awaited.count:
                awaited.future.cancel()
                del self._awaited[task_id]
                if not self._awaited:
                    self._end(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._bell is None or self._backend.remote:
            if self._thread is None:
                look = self._look_from_thread() if self._bell is None else self._converse(loop)
                self._thread = loop.create_task(look)
        elif self._timer is None:
            if self._bell.fileno() >= 0:
                loop.add_reader(self._bell.fileno(), self._rang)
            self._timer = loop.call_later(POLL_SECONDS, self._tick, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._backend.remote:
            self._stir.set()  # it may have a thread under way, and ends by itself
        elif self._thread is not None:
            self._thread.cancel()
            self._thread = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._bell.fileno() >= 0:
                loop.remove_reader(self._bell.fileno())

    def _rang(self) -> None:
        self._bell.clear()
        self._look(list(self._awaited))

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(POLL_SECONDS, self._tick, loop)
        self._look(list(self._awaited))

    def _look(self, ids: list[str]) -> None:
        try:
            self._settle(self._backend.read_many(ids))
        except Exception as error:  # noqa: BLE001 - whatever the store says, who awaits is told
            self._fail(ids, error)

    async def _look_from_thread(self) -> None:
        """For stores without a bell: the loop must not wait for the network."""
        import asyncio

        pause = 0.002
        while True:
            ids = list(self._awaited)
            try:
                self._settle(await asyncio.to_thread(self._backend.read_many, ids))
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(ids, error)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS)

    async def _converse(self, loop: asyncio.AbstractEventLoop) -> None:
        """For stores with a bell on a network: a thread at a time subscribes and asks, the loop watches the
        socket."""
        import asyncio

        everything, following = True, False
        try:
            while self._awaited or following:
                self._stir.clear()
                ids = list(self._awaited)
                following = bool(ids)  # once nothing is awaited, nothing is to ring either
                try:
                    self._settle(await asyncio.to_thread(self._ask, ids, everything))
                except Exception as error:  # noqa: BLE001 - as above
                    self._fail(ids, error)
                if following:
                    everything = not await self._stirring(loop)
        except BaseException:  # cancelled, as all is that is left when a loop ends
            self._bell.close()
            raise
        finally:
            self._thread = None

    async def _stirring(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Wait until there is something to do; False when it is time to look at everything."""
        import asyncio

        socket = self._bell.fileno()
        if socket >= 0:
            loop.add_reader(socket, self._stirred, loop, socket)
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._stir.wait()
            return True
        except TimeoutError:
            return False
        finally:
            if socket >= 0:
                loop.remove_reader(socket)

    def _stirred(self, loop: asyncio.AbstractEventLoop, socket: int) -> None:
        loop.remove_reader(socket)  # until it is read, it would call again and again
        self._stir.set()

    def _ask(self, ids: list[str], everything: bool) -> dict[str, Found]:
        changed: list[str] = []
        for _ in range(2):  # where the connection was closed, the second time makes another
            try:
                changed += [*self._bell.rung(), *self._bell.follow(ids)]
                break
            except BackendError:  # the look tells whether the server answers
                everything = True
        return self._backend.read_many(ids if everything else changed) if everything or changed else {}

    def _settle(self, found: dict[str, Found]) -> None:
        for task_id, each in found.items():
            awaited = self._awaited.get(task_id)
            if awaited is None or awaited.future.done():
                continue
            if isinstance(each, DamagedResult):
                awaited.future.set_exception(each)
            elif each["status"] in states.READY_STATES:
                awaited.future.set_result(each)

    def _fail(self, ids: list[str], error: Exception) -> None:
        for task_id in ids:
            awaited = self._awaited.get(task_id)
            if awaited is not None and not awaited.future.done():
                awaited.future.set_exception(error)


class Watcher:
    """Keeps the promises of an app: a thread that waits for their results, and lives as long as there are
    any."""

    def __init__(self, app: QWorker) -> None:
        self._app = weakref.ref(app)
        self._lock = threading.Lock()
        self._results: dict[str, list[AsyncResult[Any]]] = {}  # under _lock
        self._thread: threading.Thread | None = None  # under _lock

    def watch(self, result: AsyncResult[Any]) -> None:
        """Keep the promises of *result* when it has ended."""
        with self._lock:
            self._results.setdefault(result.id, []).append(result)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="qworker-promises", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            app = self._app()
            with self._lock:
                ids = list(self._results)
                if not ids or app is None:
                    self._thread = None
                    return
            try:
                found = app.backend.wait(ids, _WATCH_SECONDS)
            except DamagedResult as error:
                for result in self._taken(str(error.task_id)):
                    logger.error("a promise cannot be kept: %s", error)
                    callbacks.keep(result, error)
                continue
            except Exception as error:  # noqa: BLE001 - a promise outlives a store that is away
                logger.warning("promises wait for the result store: %s", error)
                app.clock.sleep(1.0)
                continue
            for task_id, meta in found.items():
                for result in self._taken(task_id):
                    result.keep(meta)

    def _taken(self, task_id: str) -> list[AsyncResult[Any]]:
        """The results of *task_id*, which are not watched any more."""
        with self._lock:
            return self._results.pop(task_id, [])


def waiter(app: QWorker) -> LoopWaiter:
    """What waits for results of *app* in the running event loop."""
    import asyncio  # only for who uses it: it costs 30 ms

    loop = asyncio.get_running_loop()
    if loop not in app._waiters:
        app._waiters[loop] = LoopWaiter(app.backend, loop)
    return app._waiters[loop]


def watcher(app: QWorker) -> Watcher:
    """What keeps the promises made by ``result.then``."""
    with app.lock:
        if app._watcher is None:
            app._watcher = Watcher(app)
        return app._watcher
