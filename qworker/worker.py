"""Worker: starts, watches and stops the parts built by its Assembly.

Comes from:  ``qworker start`` (run), and EmbeddedWorker (start, watch, stop).
Goes to:     Assembly, which holds the parts and the order in which they start, go quiet and stop.
Thread:      main. Signal handlers set a flag and write one byte; components that crash do the same.

Stopping is a state machine with deadlines: RUNNING → DRAINING (take no more messages, give back those not
started, wait for running tasks) → SOFT (interrupt them) → COLD (kill them and give them back) → stopped.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker import signals
from qworker.components.component import Component
from qworker.components.pool.choice import make_zygote
from qworker.components.shutdown import (
    COLD,
    DRAINING,
    INTERRUPTED_SECONDS,
    KILL_SECONDS,
    RUNNING,
    SOFT,
    ShutdownRequests,
)
from qworker.components.worker_lease import Registration
from qworker.conf.workers import OPTIONS
from qworker.errors import QWorkerError, WorkerShutdown, WorkerTerminate
from qworker.naming import node_name

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.assembly import Assembly, MakeComponent
    from qworker.components.ending.settler import Settler
    from qworker.components.pool.contract import OnRoom, TaskPool
    from qworker.components.pool.zygote import Zygote

logger = logging.getLogger(__name__)

PHASE_OF = {"warm": DRAINING, "soft": SOFT, "cold": COLD}


class Worker:
    """One worker of *app*. An option that is None is taken from the settings.

    - hostname: name@host.
    - queues: to consume; None for all of ``task_queues``, or the default one.
    - on_ready: called once everything runs.
    - extras: factories of additional parts, such as the scheduler of ``--beat``.
    """

    parts: Assembly
    """Set by start()."""

    def __init__(
        self,
        app: QWorker,
        *,
        hostname: str | None = None,
        queues: Sequence[str] | None = None,
        on_ready: Callable[[], None] | None = None,
        extras: Sequence[MakeComponent] = (),
        **settings: Any,
    ) -> None:
        self.app = app
        app.conf.command_line({OPTIONS[name]: value for name, value in settings.items()}, "Worker(…)")
        conf = app.conf
        self.hostname = hostname if hostname and "@" in hostname else node_name(hostname)
        self.queues = tuple(queues or conf.task_queues or (conf.task_default_queue,))
        self.concurrency: int = (
            1 if conf.worker_pool == "solo" else conf.worker_concurrency or os.cpu_count() or 1
        )
        self.registration = Registration(self.hostname, self.queues, self.concurrency)
        self.phase = RUNNING
        self._on_ready = on_ready
        self._extras = tuple(extras)
        self._requests = ShutdownRequests()
        self._crash: tuple[str, BaseException] | None = None  # written once by the component that crashed
        self._started = self._built = self._consuming = self._stopped = False
        self._abandoned = 0
        self._zygote: Zygote | None = None

    # -- starting --

    def start(self) -> None:
        """Start everything; return when the worker consumes. Call it in the main thread, before other threads
        start.

        Raises QWorkerError if a part cannot start.
        """
        if self._started:
            return
        self._started = True
        self._build()
        for part in self.parts.start_order:
            part.start()
        listener = self.parts.listener
        while not (listener.connection.answered_at or self._crash or self._requests) and listener.alive:
            self.parts.health.look()
            time.sleep(0.001)
        if (failure := self.failure) is not None:
            self._shut_down(COLD)
            raise failure
        if not listener.connection.answered_at:
            return  # stopped before the broker answered
        for part in self.parts.others:
            part.start()
        self._consuming = True
        signals.worker_ready.send(self)
        if self._on_ready is not None:
            self._on_ready()

    def _build(self) -> None:
        """Load the tasks and build the parts."""
        app, conf = self.app, self.app.conf
        signals.celeryd_init.send(self.hostname, instance=self, conf=conf, options={})
        app.load_tasks()
        signals.worker_init.send(self)
        # The zygote is forked before any thread starts, and before the modules of the parts are loaded, which
        # tasks do not need. It gets ready while they are loaded here.
        self._zygote = make_zygote(app)
        try:
            from qworker.components.assembly import Assembly

            self.parts = Assembly(
                app, self.registration, self._crashed, lambda: self.phase, self._make_pool, self._extras
            )
        except BaseException:
            if self._zygote is not None:
                self._zygote.close()
            raise
        self._built = True
        signals.celeryd_after_setup.send(self.hostname, instance=self, conf=conf)

    def _make_pool(self, settler: Settler, on_room: OnRoom) -> TaskPool:
        from qworker.components.assembly import make_worker_pool

        return make_worker_pool(self.app, self.registration, self._crashed, self._zygote, settler, on_room)

    # -- called by components and other threads --

    def _crashed(self, name: str, error: BaseException) -> None:
        """Record that a component crashed, and wake the main thread. Called by the component's thread."""
        if self._crash is None:
            self._crash = (name, error)
            if isinstance(error, ENDS):
                logger.info("the %s raised %r, which stops the worker", name, error)
            elif self._consuming:  # before that, start() raises it
                # Logged at once: an embedded worker may not be stopped for long.
                logger.error(
                    "the %s failed, so the worker stops: %s", name, error, extra={"event": "worker-failed"}
                )
                logger.debug("traceback of this failure", exc_info=error)
        self._requests.wake()

    def request_stop(self, how: str = "warm") -> None:
        """Request a stop: "warm" (after running tasks), "soft" (interrupt them) or "cold" (kill them). Any
        thread, any time."""
        self._requests.request(PHASE_OF[how])

    def info(self) -> dict[str, Any]:
        """Return a snapshot for reports and health checks. Any thread."""
        parts = self.parts
        return {
            "hostname": self.hostname,
            "pid": os.getpid(),
            "phase": self.phase,
            "queues": list(self.queues),
            "ready": len(parts.ready),
            "scheduled": len(parts.schedule.schedule),
            "pool": parts.pool.info(),
            **parts.state.info(),
        }

    @property
    def running(self) -> bool:
        """Whether it accepts tasks. Any thread."""
        return self._consuming and self.phase == RUNNING and self._crash is None

    @property
    def failure(self) -> BaseException | None:
        """The crash that stops the worker; None without one. Any thread."""
        if self._crash is None:
            return None
        name, error = self._crash
        if isinstance(error, QWorkerError):
            return error
        return QWorkerError(f"the {name} failed{'' if self._consuming else ' to start'}: {error!r}")

    # -- running --

    def run(self) -> int:
        """Start, run until asked to stop, and return the exit code: 0 stopped, 1 crashed, 3 abandoned tasks,
        or that of a WorkerShutdown or WorkerTerminate."""
        previous = self._requests.take_signals()
        code = 0
        try:
            self.start()
            self.watch()
        except ENDS as error:  # for example from a receiver of worker_ready
            self.request_stop("cold" if isinstance(error, WorkerTerminate) else "warm")
            code = _code_of(error)
        except QWorkerError:
            if self._crash is None or not isinstance(self._crash[1], ENDS):
                raise
        finally:
            self.stop()
            self._requests.hand_back(previous)
        if self._crash is not None:
            code = _code_of(self._crash[1])
        return code or (3 if self._abandoned else 0)

    def watch(self) -> None:
        """Check the health until a request to stop or a crash."""
        while self._crash is None and not self._requests:
            self._requests.rest(self.parts.health.look_seconds)
            self.parts.health.look()

    # -- ending --

    def stop(self, how: str = "warm") -> None:
        """Stop everything: as *how* says, or harder if that was requested. Safe to call twice."""
        if self._built and not self._stopped:
            self._shut_down(COLD if self._crash is not None else self._requests.hardest(PHASE_OF[how]))

    def _shut_down(self, phase: str) -> None:
        self._stopped = True
        self._requests.obey()
        patient_until = self.app.clock.monotonic() + self.app.conf.worker_shutdown_timeout
        signals.worker_shutting_down.send(self.hostname, how=phase, exitcode=0, sig=None)
        self.phase = phase
        for part in self.parts.quiet_order:
            _try(part, part.quiet)
        self._wait_for_tasks(phase, patient_until)
        for part, seconds in self.parts.stop_order:
            if part is self.parts.listener and not self._is_cold():
                seconds = max(seconds, patient_until - self.app.clock.monotonic())
            _try(part, partial(self._end, part, seconds))
        self._name_the_abandoned()
        signals.worker_shutdown.send(self)
        totals = self.parts.state.totals
        logger.info(
            "stopped (%s): finished %d, given back %d, of these interrupted %d%s",
            self.phase,
            totals["finished"] + totals["dead_lettered"],
            totals["returned"],
            self.parts.running.cut,
            "".join(
                f", {words} {totals[name]}"
                for name, words in (
                    ("lost", "delivered again after a death"),
                    ("requeued", "put back by tasks"),
                )
                if totals[name]
            ),
            extra={"event": "worker-stopped"},
        )

    def _wait_for_tasks(self, phase: str, deadline: float) -> None:
        """Wait for running tasks until the monotonic *deadline*, then interrupt them. Set the phase to COLD
        if any still runs afterwards."""
        conf, pool = self.app.conf, self.parts.pool
        if phase == DRAINING:
            logger.info(
                "stopping: waiting up to %g s for %d running tasks; a second signal gives them back at once",
                conf.worker_shutdown_timeout,
                pool.in_flight(),
                extra={"event": "worker-stopping"},
            )
            phase = self._drain(deadline)
        if phase == COLD and pool.in_flight():
            logger.warning("stopping at once: %d running tasks are interrupted", pool.in_flight())
        if phase == SOFT and pool.in_flight():
            self.phase = SOFT
            logger.warning("%d tasks are still running: interrupting them", pool.in_flight())
            pool.interrupt()
            seconds = max(conf.worker_soft_shutdown_timeout, INTERRUPTED_SECONDS)
            self._drain(self.app.clock.monotonic() + seconds)
        if pool.in_flight():
            self.phase = COLD

    def _drain(self, deadline: float) -> str:
        """Wait for running tasks; return the next phase."""
        pool = self.parts.pool
        while self.parts.mediator.busy() and pool.alive:
            if self.app.clock.monotonic() > deadline:
                return SOFT
            self._requests.rest(0.005)
            self.parts.health.look()
            if (hardest := self._requests.hardest(self.phase)) != self.phase:
                return hardest
        return COLD

    def _is_cold(self) -> bool:
        """Whether to stop without waiting for an unavailable broker."""
        return self._crash is not None or self._requests.hardest(RUNNING) == COLD

    def _end(self, part: Component, seconds: float) -> None:
        """Stop *part* within *seconds*; the Listener at once if another request to stop arrives."""
        clock = self.app.clock
        deadline = clock.monotonic() + seconds
        requests = len(self._requests)
        part.stop(deadline)
        while not part.join(0.1) and clock.monotonic() < deadline + KILL_SECONDS:
            self.parts.health.look()
            if part is self.parts.listener and len(self._requests) > requests:
                deadline = min(deadline, clock.monotonic())
                part.stop(deadline)

    def _name_the_abandoned(self) -> None:
        """Count the tasks whose settlement was not sent; log their ids, unless the Listener has."""
        left = self.parts.listener.left()
        if self.parts.listener.alive:
            logger.error("the broker does not answer: the worker stops without waiting any longer")
            for fate, ids in left.items():
                logger.error("%d tasks %s: %s", len(ids), fate, " ".join(ids), extra={"event": "tasks-left"})
        self._abandoned = self.parts.running.cut + sum(map(len, left.values()))


ENDS = (WorkerShutdown, WorkerTerminate)
"""Exceptions that stop the worker when raised in its own process, for example by a receiver of a signal."""


def _code_of(error: BaseException) -> int:
    """Return the exit code of a worker that stops because of *error*."""
    if not isinstance(error, ENDS):
        return 1
    return int(error.code is not None) if not isinstance(error.code, int) else error.code


def _try(part: Component, act: Callable[[], None]) -> None:
    """Call *act* of *part*. Log any error, because the other parts have to stop, too."""
    try:
        act()
    except Exception:
        logger.exception("the %s did not stop properly", part.name, extra={"event": "component-failed"})
