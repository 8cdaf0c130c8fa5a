"""EmbeddedWorker: a worker inside another program.

Comes from:  ``app.Worker(…)``: a ``with`` block, the lifespan of a web application, or start() and stop().
Goes to:     Worker, which is imported on first use and made at each start.
Thread:      start() on one of the program's threads, where children are forked; then the thread "worker
             watch" owns the worker until its end. stop() and the queries on any.

The program's signal handlers, logging and working directory are unchanged. Tasks run in threads by default,
because a program with threads cannot be forked safely.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, Unpack

from qworker.conf import unsupported
from qworker.contracts import App
from qworker.errors import QWorkerError
from qworker.naming import import_object

logger = logging.getLogger(__name__)


class WorkerOptions(TypedDict, total=False):
    """Options of a worker, which override the settings."""

    concurrency: int | None
    """Number of tasks that run at once."""
    pool: str | None
    """The kind of pool: threads, solo, or prefork (processes)."""
    prefetch_multiplier: int | None
    """Number of further messages held for each task that can run."""
    max_tasks_per_child: int | None
    """Number of tasks after which a process is replaced."""
    max_memory_per_child: int | None
    """Memory in KiB above which a process is replaced after its task."""
    time_limit: float | None
    """Seconds after which the process of a task is killed, and the task fails."""
    soft_time_limit: float | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised in a task."""
    start_method: str | None
    """How processes are started; see the setting ``worker_start_method``."""


class _Worker(Protocol):
    """The part of ``worker.Worker`` that is used here."""

    hostname: str
    queues: Sequence[str]
    concurrency: int
    failure: BaseException | None

    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...
    def watch(self) -> None: ...
    def request_stop(self, how: str) -> None: ...
    def stop(self) -> None: ...


class _EmbeddedRun:
    """One worker, from its start to its end. starting: the thread that starts it; None afterwards."""

    def __init__(self, worker: _Worker, watch: Callable[[_EmbeddedRun], None]) -> None:
        self.worker = worker
        self.process = os.getpid()
        self.starting: int | None = threading.get_ident()
        self.ended = (
            threading.Event()
        )  # and no join(): one that Ctrl-C interrupts may take the thread for dead
        self.watcher = threading.Thread(target=watch, args=(self,), name="worker watch", daemon=True)


_serving: set[tuple[int, App]] = set()
"""The apps that have a worker, with its process id. Changed under the app's lock, or by the run that added
the entry."""


class EmbeddedWorker:
    """A worker of *app* in this program::

        with app.Worker(concurrency=2, queues=["mail"]):
            ...  # tasks run, in threads of this program

    ``async with`` does the same in a coroutine. hostname, queues, options: as for Worker. Given options
    become the app's settings; the others are taken from them. A forked child has no worker until it starts
    one.
    """

    def __init__(
        self,
        app: App,
        *,
        hostname: str | None = None,
        queues: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        unsupported.refuse("app.Worker(…)", options, unsupported.WORKER_ARGUMENTS)
        for name in options.keys() - WorkerOptions.__annotations__.keys():
            raise TypeError(f"app.Worker() has no argument {name!r}; it has hostname, queues, {_NAMES}")
        self._app = app
        self._hostname = hostname
        self._queues = queues
        self._options = options
        self._run: _EmbeddedRun | None = None  # written under the app's lock

    # -- state --

    @property
    def running(self) -> bool:
        """Whether it takes tasks: it has started, and is not stopping."""
        run = self._own_run()
        return run is not None and run.worker.running

    @property
    def error(self) -> BaseException | None:
        """The error that stopped it, which was also logged; None if there is none."""
        run = self._own_run()
        return None if run is None else run.worker.failure

    def _own_run(self) -> _EmbeddedRun | None:
        """Return the latest run in this process; None if there is none, as in a forked child."""
        run = self._run
        return run if run is not None and run.process == os.getpid() else None

    # -- starting --

    def start(self) -> None:
        """Start; return when it takes tasks, or stop() was called meanwhile. Safe to call twice; after stop()
        it starts again.

        Waits for an unavailable broker if ``broker_connection_retry_on_startup`` is on. Raises QWorkerError
        if it cannot start: ConfigurationError for invalid settings, or if forking is unsafe here.
        """
        run = self._begin()
        if run is not None:
            self._bring_up(run)

    def _begin(self) -> _EmbeddedRun | None:
        """Return a new run; None if one is running."""
        app = self._app
        place = os.getpid(), app
        with app.lock:
            run = self._own_run()
            if run is not None and not run.ended.is_set():
                return None
            if place in _serving:
                raise QWorkerError(
                    f"{app!r} already has a worker in this program: increase its concurrency and its queues, "
                    "or create another app for this worker"
                )
            app.conf.resolve()  # so that invalid options are not kept
            worker: _Worker = import_object("qworker.worker:Worker")(
                app,
                hostname=self._hostname,
                queues=self._queues,
                **{**self._options, "pool": _pool(app, self._options.get("pool"))},
            )
            _serving.add(place)
            self._run = _EmbeddedRun(worker, self._watch)
            return self._run

    def _bring_up(self, run: _EmbeddedRun) -> None:
        worker = run.worker
        try:
            import_object("qworker.components.pool.choice:refuse_unsafe_fork")(self._app)
            worker.start()
            run.watcher.start()
        except BaseException:  # also Ctrl-C; the caller has no worker then
            worker.request_stop("cold")
            if run.watcher.ident is None:
                self._end(run)
            else:
                run.ended.wait()
            raise
        finally:
            run.starting = None
        if self.running:
            logger.info(
                "%s takes tasks from %s, pool %s × %d",
                worker.hostname,
                ", ".join(worker.queues),
                self._app.conf.worker_pool,
                worker.concurrency,
            )

    def _watch(self, run: _EmbeddedRun) -> None:
        """Watch the worker until a request to stop or a failure, then end it. Runs on its own thread."""
        try:
            run.worker.watch()
        finally:
            self._end(run)

    def _end(self, run: _EmbeddedRun) -> None:
        try:
            run.worker.stop()
        finally:
            _serving.discard((run.process, self._app))
            run.ended.set()

    # -- ending --

    def stop(self, how: str = "warm") -> None:
        """Stop; return when it has stopped. Safe to call twice, and from a receiver of a signal.

        how: "warm" gives back tasks that have not begun, waits for running ones up to
        ``worker_shutdown_timeout``, and then interrupts them; "soft" interrupts them at once; "cold" does not
        wait. An interrupt meanwhile, such as Ctrl-C, makes it cold.
        """
        run = self._ask(how)
        if run is None or threading.get_ident() in (run.starting, run.watcher.ident):
            return  # the thread that called this stops the worker when it continues
        try:
            run.ended.wait()
        except BaseException:
            self._ask("cold")
            run.ended.wait()
            raise

    def _ask(self, how: str) -> _EmbeddedRun | None:
        """Request a stop without waiting for it; return the run."""
        run = self._own_run()
        if run is not None and not run.ended.is_set():
            run.worker.request_stop(how)
        return run

    # -- blocks --

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop. Raises the error that stopped the worker, unless the block raised one."""
        self.stop()
        self._raise_failure(error)

    async def __aenter__(self) -> Self:
        run = self._begin()
        if run is not None:
            try:
                await self._in_thread(self._bring_up, run)
            except BaseException:
                await self._in_thread(self.stop, "cold")
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._in_thread(self.stop)
        self._raise_failure(error)

    def _raise_failure(self, error: BaseException | None) -> None:
        if error is None and (failure := self.error) is not None:
            raise failure

    async def _in_thread(self, work: Callable[..., None], *args: Any) -> None:
        """Run *work* in a thread. If cancelled meanwhile, request a cold stop and wait for *work*."""
        import asyncio  # here, because only coroutines need it

        doing = asyncio.ensure_future(asyncio.to_thread(work, *args))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            self._ask("cold")
            await asyncio.wait([doing])
            raise


_NAMES = ", ".join(WorkerOptions.__annotations__)


def _pool(app: App, asked: str | None) -> str:
    """Return the kind of pool: by default threads, because "prefork" is the default for separate workers."""
    named: str = asked or app.conf.worker_pool
    if asked is None and named == "prefork":
        logger.info("tasks run in threads of this program; pool='prefork' runs them in processes")
        return "threads"
    return named
