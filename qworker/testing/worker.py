"""StepWorker: a complete worker without threads, run step by step by a test.

Comes from:  tests, with an app.
Goes to:     the components of a worker, with an InlinePool as the pool.
Thread:      the test's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qworker.backends import open_backend
from qworker.backends.stores import Stores
from qworker.components.assembly import pool_settings
from qworker.components.component import Component, ThreadComponent
from qworker.components.ending.settler import Settler
from qworker.components.pool.contract import OnRoom
from qworker.components.shutdown import COLD
from qworker.testing.clock import FakeClock
from qworker.testing.pool import InlinePool
from qworker.testing.store import MemoryStore
from qworker.worker import Worker

if TYPE_CHECKING:
    from qworker.app import QWorker

MANY_TURNS = 100_000


class StepWorker(Worker):
    """A worker of *app*, consuming from the start::

        clock = FakeClock()
        app = QWorker("proj", broker=MemoryStore(clock), backend="cache+memory://", clock=clock)

        with StepWorker(app) as worker:
            result = add.delay(1, 2)
            worker.run()
            assert result.get() == 3

    Tasks run in this process, one at a time; with ``on_demand`` they are held in ``worker.pool`` until the
    test calls ``worker.pool.run()``. The worker uses the app's clock; ``worker.advance(60)`` advances a
    FakeClock. The other arguments are those of Worker. For an app that has a broker already, see stepping().
    """

    pool: InlinePool
    pool_class = InlinePool

    def __init__(self, app: QWorker, *, on_demand: bool = False, **options: Any) -> None:
        super().__init__(app, **{"pool": "threads", **options})  # the most similar pool
        self._on_demand = on_demand
        self._started = True
        self._build()
        self.parts.mediator.timeout = 0.0
        self.pool.start()
        self.parts.listener.opened()

    def _make_pool(self, settler: Settler, on_room: OnRoom) -> InlinePool:
        # Every step runs the mediator, so it need not be notified.
        self.pool = self.pool_class(
            self.app,
            pool_settings(self.app, self.registration),
            settler.ended,
            settler.started,
            lambda: None,
            on_demand=self._on_demand,
        )
        return self.pool

    def start(self) -> None:
        """Do nothing: the worker has started already."""

    def step(self) -> bool:
        """Run one turn of every component; return False if there was nothing to do."""
        before = self.picture()
        now = self.app.clock.monotonic()
        parts = self.parts
        parts.listener.wait(0)
        rest = parts.listener.step(now)
        parts.schedule.step(now)
        parts.mediator.step(now)
        if parts.writer is not None:
            parts.writer.step(now)
        if parts.joiner is not None:
            parts.joiner.step(now)
        return rest == 0 or self.picture() != before

    def run(self) -> int:
        """Run turns until there is nothing left to do now; return how many messages were settled.

        Published messages are found even if the server has not announced them yet.
        """
        before = self.parts.state.totals.total()
        listener = self.parts.listener
        looked = False
        for _ in range(MANY_TURNS):
            if self.step():
                looked = False
                continue
            if not looked:
                looked = True
                listener.look()
                continue
            unsettled = listener.unsettled
            if not unsettled:
                return self.parts.state.totals.total() - before
            # Acknowledgements wait for others to be written together: write them now.
            listener.step(self.app.clock.monotonic() + self.app.conf.worker_ack_flush_seconds)
            if listener.unsettled >= unsettled:  # the broker is unavailable
                return self.parts.state.totals.total() - before
        raise AssertionError(f"the worker is still busy after {MANY_TURNS:,} turns")

    def advance(self, seconds: float) -> int:
        """Advance the app's FakeClock by *seconds* while the worker runs; return how many messages were
        settled.

        Tasks with an ETA run when they are due. Everything else, such as an expired result, is found at one
        of 200 moments.
        """
        clock = self.app.clock
        assert isinstance(clock, FakeClock), "only a FakeClock can be moved"
        settled, end = self.run(), clock.now() + seconds
        while (left := end - clock.now()) > 0:
            rests = [max(0.05, seconds / 200)]
            if (due := self.parts.schedule.schedule.next_due()) is not None and due > clock.now():
                rests.append(due - clock.now())
            if (look := self.parts.listener.look_at) is not None:
                rests.append(max(0.05, look - clock.now()))
            clock.advance(min(left, *rests))
            settled += self.run()
        return settled

    def picture(self) -> tuple[Any, ...]:
        """Return counters of all components. If they are the same after a turn, nothing has happened."""
        parts = self.parts
        written = 0 if parts.writer is None else len(parts.writer.mailbox)
        return (
            parts.state.totals.total(),
            parts.listener.unsettled,
            len(parts.state.requests),
            len(parts.ready),
            len(parts.schedule.schedule),
            self.pool.in_flight(),
            written,
        )

    def _end(self, part: Component, seconds: float) -> None:
        super()._end(part, seconds)
        if isinstance(part, ThreadComponent):
            part.closed()  # as its thread would

    def _drain(self, deadline: float) -> str:
        mediator = self.parts.mediator
        self.pool.run()
        while mediator.busy():  # with ends that have to be reported
            mediator.step(0.0)
            if not self.pool.run():
                break
        return COLD

    def __enter__(self) -> StepWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop("warm" if error is None else "cold")


@contextmanager
def stepping(app: QWorker, **options: Any) -> Iterator[StepWorker]:
    """Return a StepWorker of *app*, which temporarily gets a broker and results in memory and a FakeClock::

        with stepping(app) as worker:
            result = add.apply_async((1, 2), countdown=3600)
            worker.advance(3600)
            assert result.get() == 3

    Afterwards the app's own are restored. options: as for StepWorker.
    """
    own_clock, own_stores, clock = app.clock, app.stores, FakeClock()
    app.clock = clock
    app.stores = Stores(app, MemoryStore(clock), open_backend("cache+memory://", app.conf, clock))
    try:
        with StepWorker(app, **options) as worker:
            yield worker
    finally:
        app.clock, app.stores = own_clock, own_stores
