"""EmbeddedWorker: a worker inside a program that does something else besides.

Comes from:  ``app.Worker(…)``: a ``with`` block, the lifespan of a web application, or start() and stop().
Goes to:     Worker, which is loaded for nothing else, made at each start, watched over by a thread, and ended
             by it.
Thread:      start() in one of the program's, where the worker forks if it does; then "worker watch" has the
             worker, until it has ended it. stop() and the queries, from any.

The program's signals, log and working directory are left alone, and tasks run in threads by default, since a
program that has threads cannot be forked safely.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self, TypedDict, Unpack

from qworker.conf import absent
from qworker.contracts import App
from qworker.errors import QWorkerError
from qworker.naming import import_object

logger = logging.getLogger(__name__)


class WorkerOptions(TypedDict, total=False):
    """Options of a worker in addition to the settings, with Worker's names."""

    concurrency: int | None
    """How many tasks run at once."""
    pool: str | None
    """The kind of pool: threads, solo, or prefork (processes)."""
    prefetch_multiplier: int | None
    """How many further messages it holds for each task that can run."""
    max_tasks_per_child: int | None
    """After so many tasks a process is replaced."""
    max_memory_per_child: int | None
    """A process that has more than so many KiB is replaced when its task has ended."""
    time_limit: float | None
    """Seconds after which the process of a task is ended, and the task fails."""
    soft_time_limit: float | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised inside of a task."""
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


class _Run:
    """One worker, from a start to its end. starting: the thread that starts it; None when that is done."""

    def __init__(self, worker: _Worker, watch: Callable[[_Run], None]) -> None:
        self.worker = worker
        self.process = os.getpid()
        self.starting: int | None = threading.get_ident()
        self.ended = (
            threading.Event()
        )  # and no join(): one that Ctrl-C interrupts may take the thread for dead
        self.watcher = threading.Thread(target=watch, args=(self,), name="worker watch", daemon=True)


_serving: set[tuple[int, App]] = set()
"""The apps that have a worker, with the process it runs in. Changed under the app's lock, or by the run that
added it."""


class EmbeddedWorker:
    """A worker of *app* in this program::

        with app.Worker(concurrency=2, queues=["mail"]):
            ...  # tasks run, in threads of this program

    ``async with`` does the same in a coroutine. hostname, queues, options: as for Worker; those left out are
    the settings', and those given become the app's settings. A program that was forked has no worker until it
    starts one.
    """

    def __init__(
        self,
        app: App,
        *,
        hostname: str | None = None,
        queues: Sequence[str] | None = None,
        **options: Unpack[WorkerOptions],
    ) -> None:
        absent.refuse("app.Worker(…)", options, absent.WORKER_ARGUMENTS)
        for name in options.keys() - WorkerOptions.__annotations__.keys():
            raise TypeError(f"app.Worker() has no argument {name!r}; it has hostname, queues, {_NAMES}")
        self._app = app
        self._hostname = hostname
        self._queues = queues
        self._options = options
        self._run: _Run | None = None  # written under the app's lock

    # -- what it is asked --

    @property
    def running(self) -> bool:
        """Return whether it takes tasks: it has started, and is not ending."""
        run = self._own_run()
        return run is not None and run.worker.running

    @property
    def error(self) -> BaseException | None:
        """Why it ended, or is ending, by itself; None when it did not. It was logged as well."""
        run = self._own_run()
        return None if run is None else run.worker.failure

    def _own_run(self) -> _Run | None:
        """Return the latest run, unless this process is a fork of the one that has it."""
        run = self._run
        return run if run is not None and run.process == os.getpid() else None

    # -- starting --

    def start(self) -> None:
        """Start, and return when tasks are taken, or stop() was called meanwhile. Safe to call twice; after
        stop() it starts again.

        A broker that cannot be reached is waited for, while ``broker_connection_retry_on_startup`` is on.
        Raises QWorkerError when something cannot start: ConfigurationError for wrong settings, and for
        processes that cannot be forked here.
        """
        run = self._begin()
        if run is not None:
            self._bring_up(run)

    def _begin(self) -> _Run | None:
        """A run that is to be brought up; None when there is one."""
        app = self._app
        place = os.getpid(), app
        with app.lock:
            run = self._own_run()
            if run is not None and not run.ended.is_set():
                return None
            if place in _serving:
                raise QWorkerError(
                    f"{app!r} has a worker in this program already: give that one more concurrency and all "
                    "the queues, or make another app for this one"
                )
            app.conf.resolve()  # so that options that are wrong are not kept
            worker: _Worker = import_object("qworker.worker:Worker")(
                app,
                hostname=self._hostname,
                queues=self._queues,
                **{**self._options, "pool": _pool(app, self._options.get("pool"))},
            )
            _serving.add(place)
            self._run = _Run(worker, self._watch)
            return self._run

    def _bring_up(self, run: _Run) -> None:
        worker = run.worker
        try:
            import_object("qworker.components.pool.choice:refuse_unsafe_fork")(self._app)
            worker.start()
            run.watcher.start()
        except BaseException:  # Ctrl-C, too: the caller then has no worker
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

    def _watch(self, run: _Run) -> None:
        """Run the watching thread, until the end is requested or something has failed."""
        try:
            run.worker.watch()
        finally:
            self._end(run)

    def _end(self, run: _Run) -> None:
        try:
            run.worker.stop()
        finally:
            _serving.discard((run.process, self._app))
            run.ended.set()

    # -- ending --

    def stop(self, how: str = "warm") -> None:
        """Stop, and return when that is done. Safe to call twice, and from a receiver of a signal.

        how: "warm" returns tasks that have not begun, waits for running ones up to
        ``worker_shutdown_timeout``, and then interrupts them; "soft" interrupts them at once; "cold" waits
        for nothing. An interrupt while this waits, such as Ctrl-C, makes the end cold.
        """
        run = self._ask(how)
        if run is None or threading.get_ident() in (run.starting, run.watcher.ident):
            return  # the interrupted thread handles it when it returns
        try:
            run.ended.wait()
        except BaseException:
            self._ask("cold")
            run.ended.wait()
            raise

    def _ask(self, how: str) -> _Run | None:
        """Ask for the end, and do not wait for it."""
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
        """Stop. Raises the error that has ended the worker, unless the block has its own."""
        self.stop()
        self._tell(error)

    async def __aenter__(self) -> Self:
        run = self._begin()
        if run is not None:
            try:
                await self._apart(self._bring_up, run)
            except BaseException:
                await self._apart(self.stop, "cold")
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._apart(self.stop)
        self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        if error is None and (failure := self.error) is not None:
            raise failure

    async def _apart(self, work: Callable[..., None], *args: Any) -> None:
        """Run *work* in a thread. A cancellation meanwhile makes the end cold, and waits for that."""
        import asyncio  # imported here: only coroutines need it

        doing = asyncio.ensure_future(asyncio.to_thread(work, *args))
        try:
            await asyncio.shield(doing)
        except asyncio.CancelledError:
            self._ask("cold")
            await asyncio.wait([doing])
            raise


_NAMES = ", ".join(WorkerOptions.__annotations__)


def _pool(app: App, asked: str | None) -> str:
    """Return the pool's kind. The default of the settings is for workers that are separate programs."""
    named: str = asked or app.conf.worker_pool
    if asked is None and named == "prefork":
        logger.info("tasks run in threads of this program; pool='prefork' runs them in processes")
        return "threads"
    return named
