"""Assembly: the parts of a worker, and the order in which they start, go quiet and stop.

Comes from:  Worker, at its start.
Goes to:     each part, which is made after the parts that it uses.
Thread:      main.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from qworker.backends.joins import Joins
from qworker.components.component import Component
from qworker.components.ending.joiner import Joiner
from qworker.components.ending.result_writer import ResultWriter
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.choice import make_pool
from qworker.components.pool.contract import OnRoom, PoolSettings, TaskPool
from qworker.components.receiving.ack_buffer import AckBuffer, FlushLimits
from qworker.components.receiving.fetch_window import FetchWindow
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.listener import Listener
from qworker.components.receiving.presence_report import PresenceReport
from qworker.components.receiving.settlements import Settlements
from qworker.components.request import Request
from qworker.components.shutdown import KILL_SECONDS
from qworker.components.status.counters import Counters
from qworker.components.status.health import Health, LongRuns
from qworker.components.waiting.early_acks import EarlyAcks
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.waiting.mediator import Mediator
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.components.waiting.schedule_controller import ScheduleController
from qworker.components.worker_lease import Registration, WorkerLease
from qworker.errors import NotSupported
from qworker.tasks.options import rate_per_second
from qworker.tasks.outcome import INTERRUPTED, Outcome
from qworker.transports.lease import Release

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.pool.zygote import Zygote
    from qworker.components.receiving.replays import Replays
    from qworker.components.status.http_status import HttpStatus

OnCrash = Callable[[str, BaseException], None]
MakePool = Callable[[Settler, OnRoom], TaskPool]
MakeComponent = Callable[[OnCrash], Component]

ABSENT = Component()
"""A placeholder for a missing part."""


class Stop(NamedTuple):
    """seconds: time limit for *part* to finish its work."""

    part: Component
    seconds: float


class Assembly:
    """The parts of a worker of *app*, not started yet.

    - on_crash: called with the name of a part and the error that ended it.
    - phase: returns the worker's phase.
    - pool_maker: see make_worker_pool().
    - extras: factories of independent parts that run in the worker, such as a scheduler.
    """

    def __init__(
        self,
        app: QWorker,
        registration: Registration,
        on_crash: OnCrash,
        phase: Callable[[], str],
        pool_maker: MakePool,
        extras: Sequence[MakeComponent] = (),
    ) -> None:
        conf, clock, broker = app.conf, app.clock, app.broker
        # First the targets of other parts: the Listener's mailbox, the ledger, the ready queue.
        mailbox: Mailbox[SettlementOrder] = Mailbox(broker.consumer.wake)
        self.state = WorkerState(conf.revokes_max, _replays(conf.security_key))
        self.ready = _ready_queue(app, mailbox)
        address = conf.worker_http_address
        counters = Counters() if address is not None else None
        # Then the parts that settle, through the mailbox.
        lease = WorkerLease(clock, broker, registration, conf.worker_lease_seconds, self._lease_holds)
        self.joiner = _joiner(app, on_crash, lambda: lease.current() is not None)
        record = _forget if self.joiner is None else self.joiner.record
        on_parts = _forget if self.joiner is None else self.joiner.wake
        self.writer = (
            None if app.results_with_broker else ResultWriter(app, on_crash, mailbox.post_many, record)
        )
        settler = Settler(app, self.ready, mailbox, self.writer, counters)
        # Then the path of a request backwards, from the pool to the broker.
        self.mediator = Mediator(
            clock, on_crash, self.ready, mailbox, lease, settler.ended, partial(pool_maker, settler)
        )
        self.pool = self.mediator.pool
        self.schedule = ScheduleController(clock, on_crash, self.ready, mailbox.wake)
        waiting = WaitingRequests(self.ready, self.schedule, self.mediator, settler.ended)
        held_besides = partial(_held_besides, self.mediator.early, self.writer)
        window = FetchWindow(
            self.pool, self.ready, registration.concurrency, conf.worker_prefetch_multiplier, held_besides
        )
        intake = Intake(app, self.state, settler.settle, settler.refuse)
        settlements = Settlements(app, broker.consumer, on_parts)
        limits = FlushLimits(conf.worker_ack_flush_seconds, conf.worker_ack_flush_count)
        acks = AckBuffer(broker, mailbox, settlements, self.state, self.mediator.early, limits, app.clock)
        presence = PresenceReport(
            clock, app.broker.presence, phase, lease, self.pool, waiting, acks, self.state
        )
        store_left = _forget if self.writer is None else self.writer.store_left
        self.listener = Listener(
            app, on_crash, lease, self.state, window, intake, waiting, acks, presence, store_left
        )
        # And the observers.
        self.others = others = tuple(make(on_crash) for make in extras)
        long_runs = LongRuns(clock, self.pool, registration.concurrency)
        self.health = Health(
            registration.hostname,
            conf.worker_stall_seconds,
            phase,
            self.pool,
            self.listener,
            long_runs,
            others,
        )
        self.http: HttpStatus | None = None
        if address is not None and counters is not None:
            # Imported here, because it takes 20 ms.
            from qworker.components.status.http_status import HttpStatus
            from qworker.components.status.metrics import Metrics
            from qworker.components.status.queue_depths import QueueDepths

            depths = QueueDepths(app, registration.queues)
            metrics = Metrics(self.health, depths, self.state, waiting, counters)
            self.http = HttpStatus(address, self.health, metrics)

        self.running = running = RunningTasks(self.pool, settler, waiting, mailbox)
        http, writer, joiner = self.http or ABSENT, self.writer or ABSENT, self.joiner or ABSENT
        self.start_order: tuple[Component, ...] = (
            http,  # first: probes see that the worker is starting
            running,  # receivers before senders: the pool accepts requests before there are any
            writer,  # reports problems of the result store before a task has run
            joiner,  # looks for the joins of dead workers once the listener has reached the broker
            self.schedule,
            self.mediator,
            self.listener,  # last, because it fetches the work
        )  # The others start after the broker has answered, because they need it.
        self.quiet_order: tuple[Component, ...] = (
            *others,  # these only add work
            self.listener,  # fetches no more, and gives back requests that have not started
            self.mediator,  # senders before receivers: after this, no request is on its way to the pool
            running,  # gives back jobs that have not started, and wakes the listener for them
        )  # The schedule continues: requests that fall due are given back, like all ready ones.
        self.stop_order: tuple[Stop, ...] = (
            *(Stop(part, KILL_SECONDS) for part in others),  # no other part needs them
            Stop(self.mediator, 0.0),
            Stop(self.schedule, 0.0),
            Stop(running, KILL_SECONDS),  # before the parts that settle interrupted runs
            Stop(writer, conf.result_store_patience),  # before the listener: results are stored before acks
            Stop(self.listener, KILL_SECONDS),  # after all parts that send it acks
            Stop(joiner, KILL_SECONDS),  # after the parts that may record the last part of a join
            Stop(http, 0.0),  # last: probes see that the worker is stopping
        )

    def _lease_holds(self) -> None:
        self.ready.wake()
        if self.joiner is not None:
            self.joiner.wake()


class RunningTasks(Component):
    """The pool as a part of the worker: settles the requests that the pool returns when it stops."""

    name = "pool"

    def __init__(
        self,
        pool: TaskPool,
        settler: Settler,
        waiting: WaitingRequests,
        mailbox: Mailbox[SettlementOrder],
    ) -> None:
        self._pool = pool
        self._settler = settler
        self._waiting = waiting
        self._mailbox = mailbox

    @property
    def cut(self) -> int:
        """The number of runs interrupted or killed because the worker stops. Any thread."""
        return len(self._settler.cut)

    def start(self) -> None:
        self._pool.start()

    def quiet(self) -> None:
        """Recall jobs that have not started; the Listener gives them back."""
        self._settler.quiet()
        self._waiting.recall()
        self._mailbox.wake()

    def stop(self, deadline: float = 0.0) -> None:
        """Kill running tasks."""
        self._settler.quiet()
        cut = self._pool.stop(deadline)
        self._settler.ended([(request, Outcome(INTERRUPTED, text="the worker ends")) for request in cut])


def make_worker_pool(
    app: QWorker,
    registration: Registration,
    on_crash: OnCrash,
    zygote: Zygote | None,
    settler: Settler,
    on_room: OnRoom,
) -> TaskPool:
    """Return the pool of the settings. zygote: see make_zygote()."""
    return make_pool(
        app,
        pool_settings(app, registration),
        zygote,
        settler.ended,
        settler.started,
        on_room,
        on_crash,
    )


def pool_settings(app: QWorker, registration: Registration) -> PoolSettings:
    """Return the settings of this worker's pool."""
    conf = app.conf
    return PoolSettings(
        concurrency=registration.concurrency,
        hostname=registration.hostname,
        async_concurrency=conf.worker_async_concurrency,
        frame_seconds=conf.worker_frame_seconds,
        max_tasks_per_child=conf.worker_max_tasks_per_child,
        max_memory_per_child=conf.worker_max_memory_per_child,
        running_path=app.broker.consumer.running_path(),
        alive_timeout=conf.worker_proc_alive_timeout,
    )


def _ready_queue(app: QWorker, mailbox: Mailbox[SettlementOrder]) -> ReadyQueue:
    """Return a ReadyQueue, or a TaskBucket if tasks have rate limits."""
    rates = {name: rate_per_second(task.rate_limit) for name, task in app.tasks.items()}
    limited = {name: rate for name, rate in rates.items() if rate}
    if not limited:
        return ReadyQueue(app.broker.lowest_first)

    from qworker.components.waiting.task_bucket import TaskBucket

    def overflow(request: Request, due: float) -> None:
        mailbox.post_many([SettlementOrder(request, Release(request.tag, due))])

    return TaskBucket(limited, app.clock, overflow, app.broker.lowest_first)


def _replays(security_key: object) -> Replays | None:
    """Return None if messages are not signed."""
    if security_key is None:
        return None
    from qworker.components.receiving.replays import Replays

    return Replays()


def _joiner(app: QWorker, on_crash: OnCrash, has_lease: Callable[[], bool]) -> Joiner | None:
    """Return None if the result store has no joins."""

    def joins() -> Joins:
        return app.backend.joins

    beside = app.broker.stored_results if app.results_with_broker else None
    if beside is not None:  # such a broker supports joins, so the store need not be opened to find out
        return Joiner(app, on_crash, joins, beside.may_have_due_joins, has_lease)
    try:
        joins()
    except NotSupported:
        return None
    return Joiner(app, on_crash, joins, has_lease=has_lease)


def _forget(*parts: object) -> None:
    """Do nothing; used without joins, or without a ResultWriter."""


def _held_besides(early: EarlyAcks, writer: ResultWriter | None) -> int:
    """Return how many requests are neither ready nor in the pool."""
    return len(early) + (0 if writer is None else writer.held())
