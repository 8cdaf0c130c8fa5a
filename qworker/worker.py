"""Worker: builds, starts, watches and stops the components.

Comes from:  ``qworker start``, or a program that embeds a worker (start, stop).
Goes to:     Listener, ScheduleController, Mediator and TaskPool, which do the work.
Thread:      main. Signal handlers set a flag and write one byte; components that crash do the same.

The end is one machine of states, each with a deadline: RUNNING → DRAINING (take no more, give back what has
not started, wait for what runs) → SOFT (interrupt what runs) → COLD (kill it, and give it back) → gone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qworker import signals
from qworker.components.component import ThreadComponent
from qworker.components.early_acks import EarlyAcks
from qworker.components.fetch_window import FetchWindow
from qworker.components.intake import Intake
from qworker.components.ledger import WorkerState
from qworker.components.listener import Listener
from qworker.components.mediator import Mediator
from qworker.components.orders import COLD, DRAINING, RUNNING, SOFT, Orders
from qworker.components.pool.choice import make_pool, make_zygote
from qworker.components.pool.contract import PoolSettings, TaskPool
from qworker.components.ready_queue import ReadyQueue
from qworker.components.replays import Replays
from qworker.components.request import Request
from qworker.components.result_writer import ResultWriter
from qworker.components.schedule_controller import ScheduleController
from qworker.components.settler import Settler
from qworker.components.status.counters import Counters
from qworker.components.status.health import LOOK_SECONDS, Health
from qworker.components.status.queue_depths import QueueDepths
from qworker.components.task_bucket import TaskBucket
from qworker.errors import QWorkerError
from qworker.naming import node_name
from qworker.tasks.options import rate_per_second
from qworker.tasks.outcome import INTERRUPTED, REVOKED, Outcome

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.status.http_status import HttpStatus

logger = logging.getLogger(__name__)

ORDERS = {"warm": DRAINING, "soft": SOFT, "cold": COLD}
KILL_SECONDS = 5.0
"""How long the pool may take to die."""


class Worker:
    """One worker of *app*. None for an option takes the setting.

    hostname: name@host. queues: which to consume; None: all of ``task_queues``, or the default one.
    on_ready: called once everything runs.
    """

    def __init__(
        self,
        app: QWorker,
        *,
        hostname: str | None = None,
        queues: Sequence[str] | None = None,
        on_ready: Callable[[], None] | None = None,
        **settings: Any,
    ) -> None:
        self.app = app
        self.hostname = hostname if hostname and "@" in hostname else node_name(hostname)
        app.conf.command_line({CONF_OF[name]: value for name, value in settings.items()})
        conf = app.conf
        self.queues = tuple(queues or conf.task_queues or (conf.task_default_queue,))
        self.concurrency: int = (
            1 if conf.worker_pool == "solo" else conf.worker_concurrency or os.cpu_count() or 1
        )
        self.phase = RUNNING
        self._on_ready = on_ready
        self._orders = Orders()
        self._crash: tuple[str, BaseException] | None = None  # written once by the component that crashed
        self._started = False
        self._stopped = False
        self._abandoned = 0
        self.state = WorkerState(conf.revokes_max, None if conf.security_key is None else Replays())
        self.http: HttpStatus | None = None

    # -- building --

    def start(self) -> None:
        """Start everything; return when the worker consumes. Call it in the main thread, before others exist.

        Raises QWorkerError when something cannot start.
        """
        if self._started:
            return
        self._started = True
        self._build()
        if self.http is not None:
            self.http.start()
        self.pool.start()
        if self.writer is not None:
            self.writer.start()
        # Receivers before senders: the listener, which brings the work, comes last.
        for component in (self.schedule, self.mediator, self.listener):
            component.start()
        while not (self.listener.last_turn or self._crash or self._orders) and self.listener.alive:
            self.health.look()
            time.sleep(0.001)
        if self._crash is not None:
            self._shut_down(COLD)
            raise _as_error(self._crash)
        if not self.listener.last_turn:
            return  # asked to end before the broker answered
        signals.worker_ready.send(self)
        if self._on_ready is not None:
            self._on_ready()

    def _build(self) -> None:
        """Make the components; nothing runs yet but the zygote, which has to be forked first."""
        app, conf = self.app, self.app.conf
        signals.celeryd_init.send(self.hostname, instance=self, conf=conf, options={})
        app.load_tasks()
        signals.worker_init.send(self)
        self.ready = self._make_ready_queue()
        self.settler = Settler(app, self.ready)
        early = EarlyAcks(lambda some: self.listener.mailbox.post_many(some, at_once=True), self.ready.wake)
        self.pool = self._make_pool()
        self.writer = None
        if not app.results_with_broker:
            self.writer = ResultWriter(app, self._crashed, lambda some: self.listener.mailbox.post_many(some))
            self.settler.writer = self.writer
        self.window = FetchWindow(
            self.pool,
            self.ready,
            self.concurrency,
            conf.worker_prefetch_multiplier,
            lambda: len(early) + (0 if self.writer is None else self.writer.held()),
        )
        self.schedule = ScheduleController(app.clock, self._crashed, self.ready, app.broker.consumer.wake)
        accept = frozenset(conf.accept_content)
        intake = Intake(
            app,
            self.state,
            accept,
            tuple(conf.task_unknown_delays),
            self.settler.settle,
            self.settler.refuse,
            conf.worker_eta_window,
        )
        self.mediator = Mediator(
            app.clock,
            self._crashed,
            self.ready,
            self.pool,
            self.settler.ended,
            early,
            lambda: self.listener.holds_lease(),
            app.broker.consumer.wake,
        )
        self.listener = Listener(
            app,
            self._crashed,
            app.broker,
            self.state,
            self.ready,
            self.schedule,
            intake,
            self.window,
            early,
            node=self.hostname,
            queues=self.queues,
            concurrency=self.concurrency,
            offer=self.mediator.offer,
            on_revoked=self._revoked,
            recall=self.pool.recall,
        )
        self.settler.listener = self.listener.mailbox
        self.health = Health(
            app.clock, self.hostname, conf.worker_stall_seconds, lambda: self.phase, pool=self.pool,
            listener=self.listener, ready=self.ready, schedule=self.schedule, state=self.state,
        )  # fmt: skip
        if conf.worker_http_address is not None:
            from qworker.components.status.http_status import HttpStatus  # only then: it costs 20 ms

            self.health.counters = self.settler.counters = Counters()
            self.http = HttpStatus(conf.worker_http_address, self.health, QueueDepths(app, self.queues))
        signals.celeryd_after_setup.send(self.hostname, instance=self, conf=conf)

    def _make_pool(self) -> TaskPool:
        app, conf = self.app, self.app.conf
        forks = conf.worker_pool == "prefork" and conf.worker_start_method in FORKING
        _ = app.broker, app.backend  # imported before the fork, their modules are shared
        zygote = make_zygote(app) if forks else None
        return make_pool(
            app,
            self._pool_settings(),
            zygote,
            self.settler.ended,
            self.settler.started,
            lambda: self.mediator.refill(),
            self._crashed,
        )

    def _pool_settings(self) -> PoolSettings:
        conf = self.app.conf
        return PoolSettings(
            concurrency=self.concurrency,
            hostname=self.hostname,
            async_concurrency=conf.worker_async_concurrency,
            frame_seconds=conf.worker_frame_seconds,
            max_tasks_per_child=conf.worker_max_tasks_per_child,
            max_memory_per_child=conf.worker_max_memory_per_child,
            running_path=self.app.broker.consumer.running_path(),
            alive_timeout=conf.worker_proc_alive_timeout,
        )

    def _make_ready_queue(self) -> ReadyQueue:
        rates = {name: rate_per_second(task.rate_limit) for name, task in self.app.tasks.items()}
        limited = {name: rate for name, rate in rates.items() if rate}
        lowest = self.app.broker.lowest_first
        if not limited:
            return ReadyQueue(lowest)
        return TaskBucket(limited, self.app.clock, lambda one, due: self.settler.postpone(one, due), lowest)

    # -- what components and others ask of it --

    def _crashed(self, name: str, error: BaseException) -> None:
        """A component crashed. Its thread calls."""
        if self._crash is None:
            self._crash = (name, error)
            if self.listener.last_turn:  # before that, start() raises it
                # Said at once: who embeds a worker may not stop it for long.
                logger.error("the %s failed, so the worker stops: %s", name, error)
                logger.debug("the traceback of that", exc_info=error)
        self._orders.ring()

    def request_stop(self, how: str = "warm") -> None:
        """Ask the worker to end: "warm" (after what runs), "soft" (interrupt it) or "cold". Any thread, any
        time."""
        self._orders.give(ORDERS[how])

    def _revoked(self, request: Request) -> None:
        """A revocation hit a request that is here. Listener thread."""
        if self.schedule.schedule.remove(request):
            self.settler.ended([(request, Outcome(REVOKED, text="revoked"))])
            return
        # If it is in the pool but has not started, it comes back here, and the mediator will not pass it on.
        self.ready.put_back(self.pool.recall())
        if request.revocation.terminate and self.pool.terminate(request, request.revocation.signal):
            logger.warning("Task %s[%s] is terminated on request", request.name, request.id)

    def info(self) -> dict[str, Any]:
        """A snapshot for reports and health checks. Any thread."""
        return {
            "hostname": self.hostname,
            "pid": os.getpid(),
            "phase": self.phase,
            "queues": list(self.queues),
            "ready": len(self.ready),
            "scheduled": len(self.schedule.schedule),
            "pool": self.pool.info(),
            **self.state.info(),
        }

    # -- running --

    def run(self) -> int:
        """Start, run until told to stop, and return the exit code: 0 stopped, 1 crashed, 3 tasks were
        abandoned."""
        previous = self._orders.listen()
        try:
            self.start()
            self._watch()
        finally:
            self.stop()
            self._orders.hand_back(previous)
        if self._crash is not None:
            return 1
        return 3 if self._abandoned else 0

    def _watch(self) -> None:
        """Rest until an order or a crash comes; look at the health meanwhile."""
        while self._crash is None and not self._orders:
            self._orders.rest(LOOK_SECONDS)
            self.health.look()

    def stop(self, how: str = "warm") -> None:
        """Stop everything, by *how* unless a harder order came. Safe to call twice."""
        if self._stopped or not self._started or not hasattr(self, "mediator"):
            return
        self._shut_down(COLD if self._crash is not None else self._orders.hardest(ORDERS[how]))

    def _shut_down(self, phase: str) -> None:
        self._stopped = self._orders.obeyed = True
        conf, began = self.app.conf, time.monotonic()
        signals.worker_shutting_down.send(self.hostname, how=phase, exitcode=0, sig=None)
        self.phase = phase
        # Senders before receivers, so that nothing is handed to somebody who is gone.
        self.listener.quiet()
        self.mediator.stop()
        self.schedule.stop()
        self.pool.quiet()
        self.ready.put_back(self.pool.recall())
        self.listener.wake()  # which gives back what is there
        if phase == DRAINING:
            logger.info(
                "stopping: waiting up to %g s for %d running tasks; a second signal gives them back at once",
                conf.worker_shutdown_timeout,
                self.pool.in_flight(),
            )
            phase = self._drain(began + conf.worker_shutdown_timeout)
        if phase == SOFT and self.pool.in_flight():
            self.phase = SOFT
            logger.warning("%d tasks still run: interrupting them", self.pool.in_flight())
            self.pool.interrupt()
            self._drain(time.monotonic() + max(conf.worker_soft_shutdown_timeout, 1.0))
        if self.pool.in_flight():
            self.phase = COLD
        cut = self.pool.stop(time.monotonic() + KILL_SECONDS)
        self._abandoned = len(cut)
        self.settler.ended([(request, Outcome(INTERRUPTED, text="the worker ends")) for request in cut])
        if self.writer is not None:
            self._end(self.writer, conf.result_store_patience)
        # The orders are looked at once more: who has become impatient does not wait for a broker that is away
        # either.
        cold = self._crash is not None or self._orders.hardest(RUNNING) == COLD
        self._end_listener(
            max(time.monotonic() + KILL_SECONDS, 0.0 if cold else began + conf.worker_shutdown_timeout)
        )
        if self.http is not None:
            self.http.stop()
        signals.worker_shutdown.send(self)
        totals = self.state.totals
        logger.info(
            "stopped (%s): %d tasks finished, %d given back, %d of them cut short",
            self.phase,
            totals["finished"] + totals["buried"],
            totals["returned"],
            len(cut),
        )

    def _end(self, component: ThreadComponent, timeout: float) -> None:
        component.stop(timeout)

    def _end_listener(self, deadline: float) -> None:
        """Let the broker hear the last, which may take until *deadline*; note what it has not heard."""
        self.listener.end_by(deadline)
        self._end(self.listener, 0.0)
        orders = len(self._orders)
        while self.listener.alive and time.monotonic() < deadline + KILL_SECONDS:
            self.health.look()
            if len(self._orders) > orders:  # somebody is impatient
                deadline = min(deadline, time.monotonic())
                self.listener.end_by(deadline)
            self.listener.stop(0.1)
        left = self.listener.left()
        if self.listener.alive:
            logger.error("the broker does not answer, and the worker waits no longer")
            for fate, ids in left.items():
                logger.error("%d tasks %s: %s", len(ids), fate, " ".join(ids))
        self._abandoned += sum(map(len, left.values()))

    def _drain(self, deadline: float) -> str:
        """Wait for what runs; return the phase that comes next."""
        while self.pool.in_flight() and self.pool.alive:
            if time.monotonic() > deadline:
                return SOFT
            self._orders.rest(0.005)
            self.health.look()
            if (hardest := self._orders.hardest(self.phase)) != self.phase:
                return hardest
        return COLD


CONF_OF = {
    "concurrency": "worker_concurrency",
    "pool": "worker_pool",
    "prefetch_multiplier": "worker_prefetch_multiplier",
    "max_tasks_per_child": "worker_max_tasks_per_child",
    "max_memory_per_child": "worker_max_memory_per_child",
    "time_limit": "task_time_limit",
    "soft_time_limit": "task_soft_time_limit",
    "start_method": "worker_start_method",
}
"""Options of Worker and the settings that they are."""

FORKING = ("zygote", "fork")


def _as_error(crash: tuple[str, BaseException]) -> BaseException:
    name, error = crash
    return (
        error if isinstance(error, QWorkerError) else QWorkerError(f"the {name} failed to start: {error!r}")
    )
