"""A whole worker, turn by turn on a clock that stands still: what happens to a task from its call to its end.

Once with everything in memory, where results have a store of their own, and once on the embedded file, where
they are stored with the ack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.components.receiving.fetch_window import MAX_WINDOW
from qworker.errors import BackendError, Reject, TaskRevoked, Terminated, TimeLimitExceeded, WorkerLost
from qworker.tasks.outcome import LOST, TIME_LIMIT
from qworker.testing import FakeClock, MemoryStore, StepWorker, stepping
from qworker.transports.lease import Broker, Envelope, Release
from qworker.transports.sql.embedded.broker import SQLiteBroker

pytestmark = pytest.mark.integration


class House:
    """An app on a broker, its clock, and the workers a test makes; *ran*: what ran, in order."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.clock = FakeClock()
        self.ran: list[Any] = []
        self.workers: list[StepWorker] = []
        self.apps: list[QWorker] = []
        self.first: MemoryStore | None = None
        self.app = self.make_app()

    def make_app(self, **settings: Any) -> QWorker:
        """Another app on the same broker, as in another process."""
        broker: Broker
        if self.kind == "sqlite":
            broker, backend = SQLiteBroker(f"sqlite:///{self.directory}/q.db", clock=self.clock), None
        elif self.first is None:
            broker, backend = MemoryStore(self.clock), "cache+memory://"
            self.first = broker
        else:
            broker, backend = self.first.another(), "cache+memory://"
        app = QWorker(
            "house", broker=broker, backend=backend, clock=self.clock, set_as_current=False, **settings
        )
        self.apps.append(app)
        return app

    def task(self, body: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A task "work" that says that it ran, and then does *body*."""

        def work(*args: Any) -> Any:
            self.ran.append(args[0] if len(args) == 1 else args)
            return body(*args) if body is not None else args

        return self.app.task(name="work", **options)(work)

    def worker(self, app: QWorker | None = None, **options: Any) -> StepWorker:
        options.setdefault("concurrency", 2)
        worker = StepWorker(app or self.app, **options)
        self.workers.append(worker)
        return worker

    def pass_time(self, worker: StepWorker, seconds: float, step: float = 1.0) -> None:
        """Let *seconds* pass, with the worker at work."""
        left = seconds
        while left > 0:
            self.clock.advance(min(step, left))
            left -= step
            worker.run()

    def queues(self) -> dict[str, int]:
        """How many messages are ready, delayed and leased."""
        infos = self.app.broker.admin.queues()
        return {name: sum(getattr(info, name) for info in infos) for name in ("ready", "delayed", "leased")}


@pytest.fixture(params=["memory", "sqlite"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    made = House(request.param, tmp_path)
    yield made
    for worker in made.workers:
        worker.stop("cold")
    for app in made.apps:
        app.close()


def test_the_example_of_the_documentation() -> None:
    clock = FakeClock()
    app = QWorker(
        "proj", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False
    )

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    with StepWorker(app) as worker:
        result = add.delay(1, 2)
        worker.run()
        assert result.get() == 3


class TellsLate(MemoryStore):
    """As a server whose notification is still on its way."""

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        super().wait(0, prefetch)
        return False


def test_what_the_broker_has_not_told_of_yet_is_seen_all_the_same() -> None:
    clock = FakeClock()
    app = QWorker(
        "late", broker=TellsLate(clock), backend="cache+memory://", clock=clock, set_as_current=False
    )

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    with StepWorker(app) as worker:
        for number in range(3):
            result = add.delay(number, 1)
            assert worker.run() == 1
            assert result.get() == number + 1


def test_what_is_published_meanwhile_is_seen_though_the_broker_tells_of_it_later() -> None:
    clock = FakeClock()
    store = TellsLate(clock)
    app = QWorker("late", broker=store, backend="cache+memory://", clock=clock, set_as_current=False)

    @app.task
    def count(left: int) -> None:
        if left:
            count.delay(left - 1)

    with StepWorker(app) as worker:
        count.delay(20)
        assert worker.run() == 21


def test_an_app_with_a_broker_of_its_own_is_stepped_beside_it(tmp_path: Path) -> None:
    app = QWorker("proj", broker=f"sqlite:///{tmp_path}/q.db", set_as_current=False)

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    before = app.broker, app.backend, app.clock, app.results_with_broker
    with stepping(app) as worker:
        result = add.apply_async((1, 2), countdown=3600)
        assert worker.advance(3599) == 0
        assert not result.ready()
        assert worker.advance(1) == 1
        assert result.get() == 3
    assert (app.broker, app.backend, app.clock, app.results_with_broker) == before
    assert not (tmp_path / "q.db").exists()


# -- ends --


def test_a_task_runs_once_and_its_message_is_gone(house: House) -> None:
    task = house.task()
    result = task.delay(1)
    worker = house.worker()
    assert worker.run() == 1
    assert (house.ran, result.get(timeout=0)) == ([1], [1])
    assert house.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    assert worker.run() == 0
    assert house.ran == [1]


def test_a_failure_comes_back_as_the_exception(house: House) -> None:
    result = house.task(lambda n: {}[n]).delay(1)
    house.worker().run()
    assert result.state == "FAILURE"
    with pytest.raises(KeyError):
        result.get(timeout=0)


def test_a_retry_runs_again_when_it_is_due_and_not_before(house: House) -> None:
    def body(n: int) -> str:
        if task.request.retries < 2:
            raise task.retry(countdown=60)
        return "third time lucky"

    task = house.task(body)
    result = task.delay(1)
    worker = house.worker()
    worker.run()
    assert (house.ran, result.state) == ([1], "RETRY")
    house.pass_time(worker, 59)
    assert house.ran == [1]
    house.pass_time(worker, 2)
    assert house.ran == [1, 1]
    house.pass_time(worker, 61)
    assert (house.ran, result.get(timeout=0)) == ([1, 1, 1], "third time lucky")


def test_autoretry_gives_up_with_the_tasks_own_error(house: House) -> None:
    def body(n: int) -> None:
        raise ConnectionError("away")

    task = house.task(body, autoretry_for=(OSError,), max_retries=3, retry_backoff=1, retry_jitter=False)
    result = task.delay(1)
    worker = house.worker()
    for seconds, runs in ((0.1, 1), (1, 2), (2, 3), (4, 4), (60, 4)):
        house.pass_time(worker, seconds)
        assert len(house.ran) == runs
    with pytest.raises(ConnectionError):
        result.get(timeout=0)


def test_async_tasks(house: House) -> None:
    @house.app.task
    async def nap(n: int) -> int:
        house.ran.append(n)
        return n * 2

    results = [nap.delay(n) for n in range(5)]
    house.worker().run()
    assert [result.get(timeout=0) for result in results] == [0, 2, 4, 6, 8]


def test_the_state_started_is_to_be_seen_while_it_runs(house: House) -> None:
    seen: list[str] = []

    def body(n: int) -> None:
        # Meanwhile the other threads go on.
        now = house.clock.monotonic()
        if worker.parts.writer is not None:
            worker.parts.writer.step(now)
        worker.parts.listener.step(now)
        worker.parts.listener.step(now + house.app.conf.worker_ack_flush_seconds)
        seen.append(result.state)

    task = house.task(body, track_started=True)
    worker = house.worker(on_demand=True)
    result = task.delay(1)
    worker.run()
    worker.pool.run()
    worker.run()
    assert (seen, result.state) == (["STARTED"], "SUCCESS")


def test_a_result_store_that_is_away_delays_acks_and_stops_fetching_and_eats_nothing(house: House) -> None:
    if house.kind != "memory":
        return  # there the results are with the broker
    backend = house.app.backend
    store_rows, away = backend.store_rows, True

    def flaky(rows: Any) -> None:
        if away:
            raise BackendError("away")
        store_rows(rows)

    backend.store_rows = flaky  # type: ignore[method-assign]
    task = house.task()
    results = [task.delay(n) for n in range(1000)]
    worker = house.worker()
    house.pass_time(worker, 60)
    assert 0 < len(house.ran) <= 2 * MAX_WINDOW
    assert house.queues()["leased"] == len(house.ran)
    ran, house.ran[:] = len(house.ran), []
    house.pass_time(worker, 60)
    assert house.ran == []
    away = False
    house.pass_time(worker, 60)
    assert len(house.ran) == 1000 - ran
    assert [result.get(timeout=0) for result in results] == [[n] for n in range(1000)]
    assert sum(house.queues().values()) == 0


def test_an_ignored_result_is_nowhere(house: House) -> None:
    result = house.task(ignore_result=True).delay(1)
    assert house.worker().run() == 1
    assert house.app.backend.get(result.id) is None


# -- order --


def test_the_most_urgent_runs_first(house: House) -> None:
    task = house.task()
    for n in range(9):
        task.apply_async((n,), priority=n % 3)
    house.worker(concurrency=1, prefetch_multiplier=20).run()
    assert house.ran == [2, 5, 8, 1, 4, 7, 0, 3, 6]


def test_a_limited_task_keeps_its_rate_and_holds_nobody_up(house: House) -> None:
    slow = house.task(rate_limit="1/s")
    quick = house.app.task(name="quick")(lambda n: house.ran.append(("quick", n)))
    worker = house.worker()
    for n in range(6):
        slow.delay(n)
    quick.delay(1)
    worker.run()
    assert sorted(map(str, house.ran)) == ["('quick', 1)", "0"]
    starts: dict[int, float] = {0: house.clock.now()}
    for _ in range(100):
        house.clock.advance(0.25)
        worker.run()
        for n in house.ran[2:]:
            starts.setdefault(n, house.clock.now())
    times = sorted(starts.values())
    assert sorted(starts) == list(range(6))
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))
    assert times[-1] - times[0] < 12


def test_limited_tasks_keep_their_order_however_many_come_after(house: House) -> None:
    """Twice as many come as may run: the oldest go back to the broker, and return to their places."""
    slow = house.task(rate_limit="2/s")
    worker = house.worker()
    for n in range(100):
        slow.delay(n)
        house.clock.advance(0.25)
        worker.run()
    assert 45 <= len(house.ran) <= 51
    for _ in range(120):
        house.clock.advance(0.25)
        worker.run()
    assert house.ran == list(range(100))


def test_of_two_workers_neither_lets_a_limited_task_starve(house: House) -> None:
    slow = house.task(rate_limit="2/s")
    workers = [house.worker(), house.worker()]
    for n in range(120):
        for _ in range(2):
            slow.delay(n)
        house.clock.advance(0.25)
        for worker in workers:
            worker.run()
    oldest = sorted(set(range(120)) - set(house.ran))[0]
    latest = max(house.ran)
    assert latest - oldest < 30, (
        "a quarter of them, which is what has run beside it while it went from one to the other"
    )


# -- time --


@pytest.mark.parametrize("countdown", [0.4, 3, 30, 3600, 86400 * 30])
def test_an_eta_is_never_early_and_not_late(house: House, countdown: float) -> None:
    task = house.task()
    task.apply_async((1,), countdown=countdown)
    worker = house.worker()
    due = house.clock.now() + countdown
    worker.run()
    house.clock.advance(countdown - 0.2)
    worker.run()
    assert house.ran == []
    house.clock.advance(0.199)
    worker.run()
    assert house.ran == []
    house.clock.advance(0.002)
    worker.run()
    assert house.ran == [1]
    assert house.clock.now() - due < 0.01


def test_many_etas_hold_back_no_plain_task(house: House) -> None:
    task = house.task()
    task.apply_many([(n,) for n in range(200)], countdown=4)
    task.delay("plain")
    worker = house.worker()
    worker.run()
    assert house.ran == ["plain"]
    house.pass_time(worker, 5)
    assert sorted(house.ran[1:]) == list(range(200))


def test_a_clock_that_jumps_makes_nothing_early_and_loses_nothing(house: House) -> None:
    task = house.task()
    worker = house.worker()
    task.apply_async((1,), countdown=3)
    task.apply_async((2,), countdown=300)
    worker.run()
    house.clock.jump(-100)
    house.pass_time(worker, 50)
    assert house.ran == []
    house.clock.jump(100)
    house.pass_time(worker, 1)
    assert house.ran == [1]
    house.clock.jump(1000)
    house.pass_time(worker, 1)
    assert house.ran == [1, 2]


def test_what_expires_is_not_run(house: House) -> None:
    task = house.task()
    late, in_time = task.apply_async((1,), expires=10), task.apply_async((2,), expires=100)
    house.clock.advance(11)
    house.worker().run()
    assert (house.ran, late.state, in_time.state) == ([2], "REVOKED", "SUCCESS")
    with pytest.raises(TaskRevoked, match="expired"):
        late.get(timeout=0)


def test_what_expires_while_it_waits_for_a_process_is_not_run(house: House) -> None:
    task = house.task()
    worker = house.worker(concurrency=1, on_demand=True)
    task.delay("long")
    worker.run()
    late = task.apply_async((1,), expires=10)
    worker.run()
    house.clock.advance(11)
    worker.pool.run()
    worker.run()
    assert (house.ran, late.state) == (["long"], "REVOKED")


# -- revocation --


def test_what_is_revoked_before_it_is_fetched_is_not_run(house: House) -> None:
    task = house.task()
    gone, stays = task.delay(1), task.delay(2)
    gone.revoke()
    house.worker().run()
    assert (house.ran, gone.state, stays.state) == ([2], "REVOKED", "SUCCESS")
    assert house.queues()["ready"] == 0


def test_what_is_revoked_while_it_waits_here_is_not_run(house: House) -> None:
    task = house.task()
    worker = house.worker(concurrency=1, on_demand=True)
    task.delay("long")
    gone = task.delay(1)
    soon = task.apply_async((2,), countdown=3)
    worker.run()
    gone.revoke()
    soon.revoke()
    worker.run()
    worker.pool.run()
    house.pass_time(worker, 5)
    assert (house.ran, gone.state, soon.state) == (["long"], "REVOKED", "REVOKED")


def test_a_worker_remembers_what_was_revoked_for_longer_than_the_broker(house: House) -> None:
    """A worker that starts after revoke_expires is not told of it any more: the guide says so."""
    task = house.task()
    first = house.worker()
    gone, other = (task.apply_async((number,), countdown=300_000) for number in (1, 2))
    gone.revoke()
    first.run()
    first.advance(250_000)  # revoke_expires is a day
    first.advance(60_000)
    assert (house.ran, gone.state, other.state) == ([2], "REVOKED", "SUCCESS")
    late = task.apply_async((3,), countdown=300_000)
    late.revoke()
    first.run()
    first.stop()
    house.clock.advance(310_000)
    house.worker().run()
    assert house.ran == [2, 3]


def test_a_task_that_runs_is_ended_only_when_asked_for(house: House) -> None:
    task = house.task()
    worker = house.worker(on_demand=True)
    revoked, terminated = task.delay(1), task.delay(2)
    worker.run()
    worker.pool.started = list(worker.pool.held)
    revoked.revoke()
    terminated.revoke(terminate=True, signal="SIGKILL")
    worker.run()
    assert [(request.id, signal) for request, signal in worker.pool.terminated] == [
        (terminated.id, "SIGKILL")
    ]
    worker.pool.run()
    worker.run()
    assert (house.ran, revoked.state, terminated.state) == ([1], "SUCCESS", "REVOKED")
    with pytest.raises(Terminated):
        terminated.get(timeout=0)


def test_one_worker_hears_what_was_revoked_before_it_started(house: House) -> None:
    task = house.task()
    result = task.apply_async((1,), countdown=60)
    result.revoke()
    house.clock.advance(3600)
    house.worker().run()
    assert house.ran == []


# -- early acks --


def test_a_task_acked_early_is_out_of_the_broker_before_it_runs(house: House) -> None:
    seen: list[int] = []
    task = house.task(lambda n: seen.append(sum(house.queues().values())), acks_late=False)
    result = task.delay(1)
    house.worker().run()
    assert (house.ran, seen, result.state) == ([1], [0], "SUCCESS")


def test_a_task_acked_early_that_is_lost_is_not_run_again(house: House) -> None:
    result = house.task(acks_late=False).delay(1)
    worker = house.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], LOST, "killed by SIGKILL")
    house.pass_time(worker, 60)
    assert (house.ran, result.state) == ([], "FAILURE")
    with pytest.raises(WorkerLost, match="killed by SIGKILL"):
        result.get(timeout=0)


def test_a_task_acked_early_that_has_not_started_survives_the_stop(house: House) -> None:
    house.task(acks_late=False).delay(1)
    worker = house.worker(on_demand=True)
    worker.run()
    assert worker.pool.in_flight() == 1
    assert sum(house.queues().values()) == 0
    worker.stop()
    assert house.queues()["ready"] == 1
    house.worker().run()
    assert house.ran == [1]


# -- what goes wrong --


def test_a_lost_task_comes_again_with_pauses_and_then_is_a_dead_letter(house: House) -> None:
    result = house.task(max_deliveries=3).delay(1)
    worker = house.worker(on_demand=True)
    deaths = []
    for _ in range(100):
        worker.run()
        if worker.pool.held:
            deaths.append(house.clock.now())
            assert worker.pool.held[0].leased.deliveries == len(deaths) - 1
            worker.pool.end(worker.pool.held[0], LOST, "killed by SIGSEGV")
        house.clock.advance(0.25)
    gaps = [later - earlier for earlier, later in pairwise(deaths)]
    assert len(deaths) == 3
    assert gaps[0] <= 0.25 < 1 <= gaps[1]
    (dead,) = house.app.broker.admin.dead()
    assert "killed by SIGSEGV (delivery 3 of at most 3)" in dead.reason
    assert result.state == "FAILURE"
    assert house.app.broker.admin.dead_retry() == 1
    worker.run()
    assert worker.pool.held[0].leased.deliveries == 0


def test_a_task_that_puts_itself_back_comes_ever_later_and_marked(house: House) -> None:
    marks: list[bool] = []

    def body() -> None:
        marks.append(house.app.tasks["work"].request.delivery_info["redelivered"])  # type: ignore[index]
        raise Reject("not mine", requeue=True)

    task = house.task(body)
    result = task.delay()
    worker = house.worker()
    worker.run()
    assert marks == [False, True]
    for seconds, times in [(1, 3), (2, 4), (4, 5), (8, 6), (16, 7), (30, 8), (30, 9)]:
        house.pass_time(worker, seconds)
        assert len(marks) == times
    assert all(marks[1:])
    assert result.state == "PENDING"
    assert house.app.broker.admin.dead() == []


def test_a_task_over_its_hard_limit_is_a_failure(house: House) -> None:
    result = house.task(time_limit=5).delay(1)
    worker = house.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], TIME_LIMIT, "the hard time limit passed")
    worker.run()
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=0)


def killed(house: House, why: str, **options: Any) -> tuple[Any, Any]:
    """A call with *options* that was killed while it ran; its result, and the worker, which does not know
    yet what follows."""
    task = house.task(time_limit=9, max_deliveries=1)
    result = task.apply_async((1,), **options)
    worker = house.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], why, "it was killed")
    return result, worker


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
def test_a_child_tells_the_errbacks_of_who_was_killed(house: House, why: str) -> None:
    """They are in the body of the message, which the worker's own threads do not open."""
    house.app.task(name="tell")(house.ran.append)
    house.app.task(name="explain")(lambda request, exc, traceback: house.ran.append((request.id, type(exc))))
    errbacks = [house.app.signature("tell"), house.app.signature("explain")]
    result, worker = killed(house, why, link_error=errbacks)
    assert result.state == "PENDING", "nobody hears of it before"
    for _ in range(3):
        worker.run()
        worker.pool.run()
    worker.run()
    error = TimeLimitExceeded if why == TIME_LIMIT else WorkerLost
    assert house.ran == [(result.id, error), result.id]
    with pytest.raises(error):
        result.get(timeout=0)
    assert house.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
def test_what_would_have_come_after_who_was_killed_fails_along(house: House, why: str) -> None:
    rest = [
        dict(house.app.signature("work", (number,), options={"task_id": f"{number}"})) for number in (3, 2)
    ]
    result, worker = killed(house, why, chain=rest)
    worker.run()
    worker.pool.run()
    worker.run()
    states = [house.app.AsyncResult(task_id).state for task_id in (result.id, "2", "3")]
    assert (states, house.ran) == (["FAILURE"] * 3, [])


def test_who_dies_while_it_tells_has_ended_as_before(house: House) -> None:
    house.app.task(name="tell")(house.ran.append)
    result, worker = killed(house, TIME_LIMIT, link_error=house.app.signature("tell"))
    worker.run()
    worker.pool.end(worker.pool.held[0], LOST, "killed once more")
    worker.run()
    worker.pool.run()
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=0)
    assert house.ran == []


@pytest.mark.parametrize("deaths", [[LOST, LOST], [TIME_LIMIT], [LOST, TIME_LIMIT]])
def test_errbacks_that_kill_who_calls_them_are_left_out(house: House, deaths: list[str]) -> None:
    """What would have come after the task fails along all the same."""
    house.app.task(name="tell")(house.ran.append)
    last = dict(house.app.signature("work", (2,), options={"task_id": "last"}))
    result, worker = killed(house, LOST, chain=[last], link_error=house.app.signature("tell"))
    for why in deaths:
        worker.run()
        worker.pool.end(worker.pool.held[0], why, "killed once more")
    for _ in range(3):
        worker.run()
        worker.pool.run()
    states = [house.app.AsyncResult(task_id).state for task_id in (result.id, "last")]
    assert (states, house.ran) == (["FAILURE"] * 2, [])
    assert house.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
@pytest.mark.parametrize("acks_late", [True, False])
def test_an_end_while_the_worker_stops_is_reported(house: House, why: str, acks_late: bool) -> None:
    """A chain would never end otherwise."""
    house.app.task(name="tell")(house.ran.append)
    last = dict(house.app.signature("work", (2,), options={"task_id": "last"}))
    task = house.task(time_limit=9, max_deliveries=1, acks_late=acks_late)
    result = task.apply_async((1,), chain=[last], link_error=house.app.signature("tell"))
    worker = house.worker(on_demand=True)
    worker.run()
    worker.parts.listener.quiet()
    worker.parts.mediator.quiet()
    worker.pool.end(worker.pool.held[0], why, "it was killed")
    worker.stop()
    states = [house.app.AsyncResult(task_id).state for task_id in (result.id, "last")]
    assert states == ["FAILURE", "FAILURE"]
    house.worker().run()
    assert house.ran == [result.id]
    assert house.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize("how", ["revoked", "expired", "revoked while it waits", "poisoned"])
def test_what_would_have_come_after_who_is_not_run_fails_along(house: House, how: str) -> None:
    house.app.task(name="tell")(house.ran.append)
    task = house.task(max_deliveries=1)
    last = dict(house.app.signature("work", (2,), options={"task_id": "last"}))
    expires = {"expires": 1.0} if how == "expired" else {}
    result = task.apply_async((1,), chain=[last], link_error=house.app.signature("tell"), **expires)
    if how == "expired":
        house.clock.advance(2)
    elif how == "poisoned":
        own = house.app.broker.consumer.register("dying@test", ["celery"], 1)
        (leased,) = house.app.broker.consumer.lease(["celery"], 1).messages
        house.app.broker.consumer.settle(own, [Release(leased.tag, counted=True)])
        house.app.broker.consumer.deregister()
    elif how == "revoked":
        house.app.control.revoke(result.id)
    worker = house.worker(on_demand=True)
    if how == "revoked while it waits":
        worker.parts.mediator.quiet()
        worker.run()
        worker.parts.mediator._quiet = False
        house.app.control.revoke(result.id)
    for _ in range(4):
        worker.run()
        worker.pool.run()
    worker.run()
    state = "FAILURE" if how == "poisoned" else "REVOKED"
    assert (result.state, house.app.AsyncResult("last").state) == (state, "FAILURE")
    assert house.ran == ([result.id] if how == "poisoned" else []), (
        "Celery calls no errback of what is revoked"
    )


def test_bad_messages_are_dead_letters_and_stop_nobody(house: House) -> None:
    task = house.task()
    bad = [
        Envelope("celery", "no json", None, b"[]"),
        Envelope("celery", '{"task": "work"}', None, b"[]"),
        Envelope("celery", '{"task": "work", "id": "a"}', None, b"\xff\xfe"),
        Envelope("celery", '{"task": "work", "id": "b"}', None, b"[[1], {}"),
        Envelope(
            "celery",
            '{"task": "work", "id": "c"}',
            '{"content_type": "application/x-python-serialize"}',
            b"x",
        ),
        Envelope(
            "celery", '{"task": "work", "id": "d", "compression": "application/x-gzip"}', None, b"no gzip"
        ),
    ]
    for envelope in bad:
        house.app.broker.sender.push([envelope])
        task.delay(len(house.ran))
    worker = house.worker()
    worker.run()
    assert house.ran == [0] * 6
    reasons = [dead.reason for dead in house.app.broker.admin.dead()]
    assert len(reasons) == 6
    assert all(reasons)
    assert house.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    assert house.app.AsyncResult("b").state == "FAILURE"


def test_an_unknown_task_waits_for_a_worker_that_knows_it(house: House) -> None:
    house.task()
    stranger = house.make_app(task_unknown_delays=(30, 120))
    ignorant = house.worker(stranger)
    result = house.app.send_task("work", (1,))
    ignorant.run()
    assert house.queues() == {"ready": 0, "delayed": 1, "leased": 0}
    ignorant.stop()
    knowing = house.worker()
    house.pass_time(knowing, 36)
    assert (house.ran, result.get(timeout=0)) == ([1], [1])


def test_an_unknown_task_that_stays_unknown_is_a_dead_letter(house: House) -> None:
    house.app.conf.update(task_unknown_delays=(30, 120))
    result = house.app.send_task("nobody.knows", (1,))
    worker = house.worker()
    house.pass_time(worker, 100, step=10)
    assert house.app.broker.admin.dead() == []
    house.pass_time(worker, 100, step=10)
    (dead,) = house.app.broker.admin.dead()
    assert "nobody.knows" in dead.reason
    assert result.state == "FAILURE"


@pytest.mark.parametrize(
    "house", ["memory"], indirect=True
)  # the file's own faults are in the acceptance tests
def test_a_broker_that_goes_away_comes_back_to_a_worker_that_goes_on(house: House) -> None:
    assert isinstance(house.app.broker, MemoryStore)
    task = house.task()
    worker = house.worker(on_demand=True)
    results = [task.delay(n) for n in range(2)]
    worker.run()
    house.app.broker.away = True
    assert worker.pool.run() == 2
    worker.run()
    assert all(result.state == "SUCCESS" for result in results)
    house.app.broker.away = False
    worker.run()
    assert house.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    task.delay(9)
    worker.run()
    worker.pool.run()
    assert house.ran == [0, 1, 9]


# -- several workers --


def test_two_workers_share_the_work_and_nothing_runs_twice(house: House) -> None:
    task = house.task()
    other = house.make_app()
    other_ran: list[int] = []
    other.task(name="work")(other_ran.append)
    task.apply_many([(n,) for n in range(40)])
    workers = [house.worker(on_demand=True), house.worker(other, on_demand=True)]
    for _ in range(200):
        for worker in workers:
            worker.step()
            worker.pool.run(1)
    assert sorted(house.ran + other_ran) == list(range(40))
    assert house.ran
    assert other_ran


def test_what_a_stopped_worker_had_goes_to_the_other(house: House) -> None:
    task = house.task()
    first = house.worker(on_demand=True, concurrency=1)
    task.apply_many([(n,) for n in range(3)])
    task.apply_async((3,), countdown=4)
    first.run()
    first.pool.started = list(first.pool.held)
    assert house.queues()["leased"] == 3
    first.stop()
    assert house.ran == [0]  # what ran, ran to its end
    left = house.queues()
    assert (left["leased"], left["ready"] + left["delayed"]) == (0, 3)
    second = house.worker(house.app)
    second.run()
    assert house.ran == [0, 1, 2]
    house.pass_time(second, 5)
    assert house.ran == [0, 1, 2, 3]


def test_a_cold_stop_gives_back_what_ran_uncounted(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.task().delay(1)
    first = house.worker(on_demand=True)
    first.run()
    first.pool.started = list(first.pool.held)
    with caplog.at_level(logging.INFO):
        first.stop("cold")
    assert "is put back" in caplog.text
    assert house.ran == []
    second = house.worker(on_demand=True)
    second.run()
    assert (second.pool.held[0].leased.deliveries, second.pool.held[0].leased.redelivered) == (0, True)


def test_a_group_of_exceptions_comes_to_who_waits() -> None:
    """As asyncio.TaskGroup raises them; the traceback that is stored has that of each member."""
    app = QWorker("groups", broker=MemoryStore(FakeClock()), backend="cache+memory://", set_as_current=False)

    @app.task
    async def both() -> None:
        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(ValueError("one")))
            tasks.create_task(fail(KeyError("two")))

    result = both.delay()
    StepWorker(app).run()
    with pytest.raises(ExceptionGroup) as failure:
        result.get(timeout=0)
    assert repr(failure.value.exceptions) == "(ValueError('one'), KeyError('two'))"
    assert result.traceback is not None
    assert {"    | ValueError: one", "    | KeyError: 'two'"} <= set(result.traceback.splitlines())
