"""A StepWorker with a fake clock: tasks from their call to their end.

Once in memory, with a separate result store, and once on the embedded broker, which stores results with the
ack.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, states
from qworker.components.receiving.fetch_window import MAX_WINDOW
from qworker.errors import (
    BackendError,
    PublishError,
    Reject,
    TaskRevoked,
    Terminated,
    TimeLimitExceeded,
    WorkerLost,
)
from qworker.message.kombu_json import MAX_DEPTH
from qworker.message.protocol import TaskMessage, encode
from qworker.tasks.outcome import LOST, TIME_LIMIT
from qworker.testing import FakeClock, MemoryStore, StepWorker, stepping
from qworker.transports.lease import Broker, Envelope, Release
from qworker.transports.sql.embedded.broker import SQLiteBroker

pytestmark = pytest.mark.integration


class Env:
    """An app on a broker, its clock, and the workers of a test. ran: arguments of tasks, in order."""

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
        """Return another app on the same broker, like in another process."""
        broker: Broker
        if self.kind == "sqlite":
            broker, backend = SQLiteBroker(f"sqlite:///{self.directory}/q.db", clock=self.clock), None
        elif self.first is None:
            broker, backend = MemoryStore(self.clock), "cache+memory://"
            self.first = broker
        else:
            broker, backend = self.first.another(), "cache+memory://"
        app = QWorker(
            "env", broker=broker, backend=backend, clock=self.clock, set_as_current=False, **settings
        )
        self.apps.append(app)
        return app

    def task(self, body: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Return a task "work" that records its arguments, and then calls *body*."""

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
        """Advance the clock by *seconds* while the worker runs."""
        left = seconds
        while left > 0:
            self.clock.advance(min(step, left))
            left -= step
            worker.run()

    def queues(self) -> dict[str, int]:
        """Return the numbers of ready, delayed and leased messages."""
        infos = self.app.broker.admin.queues()
        return {name: sum(getattr(info, name) for info in infos) for name in ("ready", "delayed", "leased")}


@pytest.fixture(params=["memory", "sqlite"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Env]:
    made = Env(request.param, tmp_path)
    yield made
    for worker in made.workers:
        worker.stop("cold")
    for app in made.apps:
        app.close()


def test_documented_example() -> None:
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


class LateNotifications(MemoryStore):
    """Like a server whose notifications are in transit."""

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        super().wait(0, prefetch)
        return False


def test_run_finds_messages_without_notification() -> None:
    clock = FakeClock()
    app = QWorker(
        "late", broker=LateNotifications(clock), backend="cache+memory://", clock=clock, set_as_current=False
    )

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    with StepWorker(app) as worker:
        for number in range(3):
            result = add.delay(number, 1)
            assert worker.run() == 1
            assert result.get() == number + 1


def test_run_finds_messages_published_by_tasks() -> None:
    clock = FakeClock()
    store = LateNotifications(clock)
    app = QWorker("late", broker=store, backend="cache+memory://", clock=clock, set_as_current=False)

    @app.task
    def count(left: int) -> None:
        if left:
            count.delay(left - 1)

    with StepWorker(app) as worker:
        count.delay(20)
        assert worker.run() == 21


def test_task_runs_when_it_is_due_in_a_long_advance() -> None:
    app = QWorker("proj", set_as_current=False)

    @app.task
    def told() -> float:
        return app.clock.now()

    with stepping(app) as worker:
        start = app.clock.now()
        results = [told.apply_async(countdown=countdown) for countdown in (1801.3, 1801.4, 5000.0)]
        assert worker.advance(7200) == 3
        assert [result.get() - start for result in results] == pytest.approx(
            [1801.3, 1801.4, 5000.0], abs=1e-3
        )


def test_stepping_does_not_use_the_apps_broker(tmp_path: Path) -> None:
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


def test_task_runs_once_and_its_message_is_deleted(env: Env) -> None:
    task = env.task()
    result = task.delay(1)
    worker = env.worker()
    assert worker.run() == 1
    assert (env.ran, result.get(timeout=0)) == ([1], [1])
    assert env.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    assert worker.run() == 0
    assert env.ran == [1]


def test_failure_is_raised_as_the_exception(env: Env) -> None:
    result = env.task(lambda n: {}[n]).delay(1)
    env.worker().run()
    assert result.state == "FAILURE"
    with pytest.raises(KeyError):
        result.get(timeout=0)


def test_retry_runs_when_due(env: Env) -> None:
    def body(n: int) -> str:
        if task.request.retries < 2:
            raise task.retry(countdown=60)
        return "third time lucky"

    task = env.task(body)
    result = task.delay(1)
    worker = env.worker()
    worker.run()
    assert (env.ran, result.state) == ([1], "RETRY")
    env.pass_time(worker, 59)
    assert env.ran == [1]
    env.pass_time(worker, 2)
    assert env.ran == [1, 1]
    env.pass_time(worker, 61)
    assert (env.ran, result.get(timeout=0)) == ([1, 1, 1], "third time lucky")


def test_autoretry_ends_with_the_last_error(env: Env) -> None:
    def body(n: int) -> None:
        raise ConnectionError("away")

    task = env.task(body, autoretry_for=(OSError,), max_retries=3, retry_backoff=1, retry_jitter=False)
    result = task.delay(1)
    worker = env.worker()
    for seconds, runs in ((0.1, 1), (1, 2), (2, 3), (4, 4), (60, 4)):
        env.pass_time(worker, seconds)
        assert len(env.ran) == runs
    with pytest.raises(ConnectionError):
        result.get(timeout=0)


def test_async_tasks_run(env: Env) -> None:
    @env.app.task
    async def nap(n: int) -> int:
        env.ran.append(n)
        return n * 2

    results = [nap.delay(n) for n in range(5)]
    env.worker().run()
    assert [result.get(timeout=0) for result in results] == [0, 2, 4, 6, 8]


def test_started_state_is_visible_while_the_task_runs(env: Env) -> None:
    seen: list[str] = []

    def body(n: int) -> None:
        # Run the other components.
        now = env.clock.monotonic()
        if worker.parts.writer is not None:
            worker.parts.writer.step(now)
        worker.parts.listener.step(now)
        worker.parts.listener.step(now + env.app.conf.worker_ack_flush_seconds)
        seen.append(result.state)

    task = env.task(body, track_started=True)
    worker = env.worker(on_demand=True)
    result = task.delay(1)
    worker.run()
    worker.pool.run()
    worker.run()
    assert (seen, result.state) == (["STARTED"], "SUCCESS")


def test_unavailable_result_store_delays_acks_and_limits_leases(env: Env) -> None:
    if env.kind != "memory":
        return  # there the broker stores the results
    backend = env.app.backend
    store_rows, away = backend.store_rows, True

    def flaky(rows: Any) -> None:
        if away:
            raise BackendError("away")
        store_rows(rows)

    backend.store_rows = flaky  # type: ignore[method-assign]
    task = env.task()
    results = [task.delay(n) for n in range(1000)]
    worker = env.worker()
    env.pass_time(worker, 60)
    assert 0 < len(env.ran) <= 2 * MAX_WINDOW
    assert env.queues()["leased"] == len(env.ran)
    ran, env.ran[:] = len(env.ran), []
    env.pass_time(worker, 60)
    assert env.ran == []
    away = False
    env.pass_time(worker, 60)
    assert len(env.ran) == 1000 - ran
    assert [result.get(timeout=0) for result in results] == [[n] for n in range(1000)]
    assert sum(env.queues().values()) == 0


def test_ignored_result_is_not_stored(env: Env) -> None:
    result = env.task(ignore_result=True).delay(1)
    assert env.worker().run() == 1
    assert env.app.backend.get(result.id) is None


# -- order --


def test_tasks_run_in_order_of_priority(env: Env) -> None:
    task = env.task()
    for n in range(9):
        task.apply_async((n,), priority=n % 3)
    env.worker(concurrency=1, prefetch_multiplier=20).run()
    assert env.ran == [2, 5, 8, 1, 4, 7, 0, 3, 6]


def test_rate_limit_does_not_delay_other_tasks(env: Env) -> None:
    slow = env.task(rate_limit="1/s")
    quick = env.app.task(name="quick")(lambda n: env.ran.append(("quick", n)))
    worker = env.worker()
    for n in range(6):
        slow.delay(n)
    quick.delay(1)
    worker.run()
    assert sorted(map(str, env.ran)) == ["('quick', 1)", "0"]
    starts: dict[int, float] = {0: env.clock.now()}
    for _ in range(100):
        env.clock.advance(0.25)
        worker.run()
        for n in env.ran[2:]:
            starts.setdefault(n, env.clock.now())
    times = sorted(starts.values())
    assert sorted(starts) == list(range(6))
    assert all(later - earlier >= 1 for earlier, later in pairwise(times))
    assert times[-1] - times[0] < 12


def test_rate_limited_tasks_keep_their_order(env: Env) -> None:
    """Twice as many arrive as may run: the oldest are requeued, and keep their position."""
    slow = env.task(rate_limit="2/s")
    worker = env.worker()
    for n in range(100):
        slow.delay(n)
        env.clock.advance(0.25)
        worker.run()
    assert 45 <= len(env.ran) <= 51
    for _ in range(120):
        env.clock.advance(0.25)
        worker.run()
    assert env.ran == list(range(100))


def test_two_workers_do_not_starve_rate_limited_tasks(env: Env) -> None:
    slow = env.task(rate_limit="2/s")
    workers = [env.worker(), env.worker()]
    for n in range(120):
        for _ in range(2):
            slow.delay(n)
        env.clock.advance(0.25)
        for worker in workers:
            worker.run()
    oldest = sorted(set(range(120)) - set(env.ran))[0]
    latest = max(env.ran)
    assert latest - oldest < 30, "at most a quarter of them may run while one moves between the workers"


# -- time --


@pytest.mark.parametrize("countdown", [0.4, 3, 30, 3600, 86400 * 30])
def test_eta_task_runs_on_time(env: Env, countdown: float) -> None:
    task = env.task()
    task.apply_async((1,), countdown=countdown)
    worker = env.worker()
    due = env.clock.now() + countdown
    worker.run()
    env.clock.advance(countdown - 0.2)
    worker.run()
    assert env.ran == []
    env.clock.advance(0.199)
    worker.run()
    assert env.ran == []
    env.clock.advance(0.002)
    worker.run()
    assert env.ran == [1]
    assert env.clock.now() - due < 0.01


def test_many_eta_tasks_do_not_delay_others(env: Env) -> None:
    task = env.task()
    task.apply_many([(n,) for n in range(200)], countdown=4)
    task.delay("plain")
    worker = env.worker()
    worker.run()
    assert env.ran == ["plain"]
    env.pass_time(worker, 5)
    assert sorted(env.ran[1:]) == list(range(200))


def test_clock_jumps_do_not_run_tasks_early_or_lose_them(env: Env) -> None:
    task = env.task()
    worker = env.worker()
    task.apply_async((1,), countdown=3)
    task.apply_async((2,), countdown=300)
    worker.run()
    env.clock.jump(-100)
    env.pass_time(worker, 50)
    assert env.ran == []
    env.clock.jump(100)
    env.pass_time(worker, 1)
    assert env.ran == [1]
    env.clock.jump(1000)
    env.pass_time(worker, 1)
    assert env.ran == [1, 2]


def test_expired_task_is_not_run(env: Env) -> None:
    task = env.task()
    late, in_time = task.apply_async((1,), expires=10), task.apply_async((2,), expires=100)
    env.clock.advance(11)
    env.worker().run()
    assert (env.ran, late.state, in_time.state) == ([2], "REVOKED", "SUCCESS")
    with pytest.raises(TaskRevoked, match="expired"):
        late.get(timeout=0)


def test_task_that_expires_in_the_pool_is_not_run(env: Env) -> None:
    task = env.task()
    worker = env.worker(concurrency=1, on_demand=True)
    task.delay("long")
    worker.run()
    late = task.apply_async((1,), expires=10)
    worker.run()
    env.clock.advance(11)
    worker.pool.run()
    worker.run()
    assert (env.ran, late.state) == (["long"], "REVOKED")


# -- revocation --


def test_task_revoked_before_the_lease_is_not_run(env: Env) -> None:
    task = env.task()
    gone, stays = task.delay(1), task.delay(2)
    gone.revoke()
    env.worker().run()
    assert (env.ran, gone.state, stays.state) == ([2], "REVOKED", "SUCCESS")
    assert env.queues()["ready"] == 0


def test_task_revoked_in_the_worker_is_not_run(env: Env) -> None:
    task = env.task()
    worker = env.worker(concurrency=1, on_demand=True)
    task.delay("long")
    gone = task.delay(1)
    soon = task.apply_async((2,), countdown=3)
    worker.run()
    gone.revoke()
    soon.revoke()
    worker.run()
    worker.pool.run()
    env.pass_time(worker, 5)
    assert (env.ran, gone.state, soon.state) == (["long"], "REVOKED", "REVOKED")


def test_worker_remembers_revocations_longer_than_the_broker(env: Env) -> None:
    """A worker started after revoke_expires does not get them, as documented."""
    task = env.task()
    first = env.worker()
    gone, other = (task.apply_async((number,), countdown=300_000) for number in (1, 2))
    gone.revoke()
    first.run()
    first.advance(250_000)  # revoke_expires is a day
    first.advance(60_000)
    assert (env.ran, gone.state, other.state) == ([2], "REVOKED", "SUCCESS")
    late = task.apply_async((3,), countdown=300_000)
    late.revoke()
    first.run()
    first.stop()
    env.clock.advance(310_000)
    env.worker().run()
    assert env.ran == [2, 3]


def test_running_task_is_only_ended_with_terminate(env: Env) -> None:
    task = env.task()
    worker = env.worker(on_demand=True)
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
    assert (env.ran, revoked.state, terminated.state) == ([1], "SUCCESS", "REVOKED")
    with pytest.raises(Terminated):
        terminated.get(timeout=0)


def test_worker_gets_revocations_from_before_its_start(env: Env) -> None:
    task = env.task()
    result = task.apply_async((1,), countdown=60)
    result.revoke()
    env.clock.advance(3600)
    env.worker().run()
    assert env.ran == []


# -- early acks --


def test_early_ack_deletes_the_message_before_the_task_runs(env: Env) -> None:
    seen: list[int] = []
    task = env.task(lambda n: seen.append(sum(env.queues().values())), acks_late=False)
    result = task.delay(1)
    env.worker().run()
    assert (env.ran, seen, result.state) == ([1], [0], "SUCCESS")


def test_lost_task_with_early_ack_is_not_run_again(env: Env) -> None:
    result = env.task(acks_late=False).delay(1)
    worker = env.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], LOST, "killed by SIGKILL")
    env.pass_time(worker, 60)
    assert (env.ran, result.state) == ([], "FAILURE")
    with pytest.raises(WorkerLost, match="killed by SIGKILL"):
        result.get(timeout=0)


def test_unstarted_task_with_early_ack_is_requeued_at_stop(env: Env) -> None:
    env.task(acks_late=False).delay(1)
    worker = env.worker(on_demand=True)
    worker.run()
    assert worker.pool.in_flight() == 1
    assert sum(env.queues().values()) == 0
    worker.stop()
    assert env.queues()["ready"] == 1
    env.worker().run()
    assert env.ran == [1]


# -- failures --


def test_lost_task_is_redelivered_then_dead_lettered(env: Env) -> None:
    result = env.task(max_deliveries=3).delay(1)
    worker = env.worker(on_demand=True)
    deaths = []
    for _ in range(100):
        worker.run()
        if worker.pool.held:
            deaths.append(env.clock.now())
            assert worker.pool.held[0].leased.deliveries == len(deaths) - 1
            worker.pool.end(worker.pool.held[0], LOST, "killed by SIGSEGV")
        env.clock.advance(0.25)
    gaps = [later - earlier for earlier, later in pairwise(deaths)]
    assert len(deaths) == 3
    assert gaps[0] <= 0.25 < 1 <= gaps[1]
    (dead,) = env.app.broker.admin.dead()
    assert "killed by SIGSEGV (delivery 3 of at most 3)" in dead.reason
    assert result.state == "FAILURE"
    assert env.app.broker.admin.dead_retry() == 1
    worker.run()
    assert worker.pool.held[0].leased.deliveries == 0


def test_requeued_task_is_redelivered_with_growing_delays(env: Env) -> None:
    marks: list[bool] = []

    def body() -> None:
        marks.append(env.app.tasks["work"].request.delivery_info["redelivered"])  # type: ignore[index]
        raise Reject("not mine", requeue=True)

    task = env.task(body)
    result = task.delay()
    worker = env.worker()
    worker.run()
    assert marks == [False, True]
    for seconds, times in [(1, 3), (2, 4), (4, 5), (8, 6), (16, 7), (30, 8), (30, 9)]:
        env.pass_time(worker, seconds)
        assert len(marks) == times
    assert all(marks[1:])
    assert result.state == "PENDING"
    assert env.app.broker.admin.dead() == []


def test_hard_time_limit_is_a_failure(env: Env) -> None:
    result = env.task(time_limit=5).delay(1)
    worker = env.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], TIME_LIMIT, "the hard time limit passed")
    worker.run()
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=0)


def killed(env: Env, why: str, **options: Any) -> tuple[Any, Any]:
    """Make a call with *options* that is killed while it runs; return its result, and the worker, which has
    not processed the end yet."""
    task = env.task(time_limit=9, max_deliveries=1)
    result = task.apply_async((1,), **options)
    worker = env.worker(on_demand=True)
    worker.run()
    worker.pool.end(worker.pool.held[0], why, "it was killed")
    return result, worker


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
def test_errbacks_of_a_killed_task_run_in_a_child(env: Env, why: str) -> None:
    """They are in the body of the message, which the threads of the worker do not decode."""
    env.app.task(name="tell")(env.ran.append)
    env.app.task(name="explain")(lambda request, exc, traceback: env.ran.append((request.id, type(exc))))
    errbacks = [env.app.signature("tell"), env.app.signature("explain")]
    result, worker = killed(env, why, link_error=errbacks)
    assert result.state == "PENDING", "the failure is stored later"
    for _ in range(3):
        worker.run()
        worker.pool.run()
    worker.run()
    error = TimeLimitExceeded if why == TIME_LIMIT else WorkerLost
    assert env.ran == [(result.id, error), result.id]
    with pytest.raises(error):
        result.get(timeout=0)
    assert env.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
def test_rest_of_a_chain_fails_with_a_killed_task(env: Env, why: str) -> None:
    rest = [dict(env.app.signature("work", (number,), options={"task_id": f"{number}"})) for number in (3, 2)]
    result, worker = killed(env, why, chain=rest)
    worker.run()
    worker.pool.run()
    worker.run()
    states = [env.app.AsyncResult(task_id).state for task_id in (result.id, "2", "3")]
    assert (states, env.ran) == (["FAILURE"] * 3, [])


def test_death_while_calling_errbacks_keeps_the_outcome(env: Env) -> None:
    env.app.task(name="tell")(env.ran.append)
    result, worker = killed(env, TIME_LIMIT, link_error=env.app.signature("tell"))
    worker.run()
    worker.pool.end(worker.pool.held[0], LOST, "killed once more")
    worker.run()
    worker.pool.run()
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=0)
    assert env.ran == []


def killed_again(env: Env, worker: Any, deaths: list[str]) -> None:
    """Kill the children that report the end of a call of killed(), and let the next one report it."""
    for why in deaths:
        worker.run()
        worker.pool.end(worker.pool.held[0], why, "killed once more")
    for _ in range(3):
        worker.run()
        worker.pool.run()
    worker.run()
    assert env.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize(
    ("deaths", "told"),
    [
        ([LOST, LOST], True),
        ([TIME_LIMIT], True),
        ([LOST, TIME_LIMIT], True),
        ([LOST, LOST, LOST], False),
        ([TIME_LIMIT, TIME_LIMIT], False),
    ],
)
def test_errbacks_that_kill_their_process_are_skipped(env: Env, deaths: list[str], told: bool) -> None:
    """Those that are messages are sent, unless this also kills the process. The rest of the chain fails all
    the same."""
    env.app.task(name="tell")(env.ran.append)
    env.app.task(name="explain")(lambda request, exc, traceback: env.ran.append("explained"))
    last = dict(env.app.signature("work", (2,), options={"task_id": "last"}))
    errbacks = [env.app.signature("explain"), env.app.signature("tell")]
    result, worker = killed(env, LOST, chain=[last], link_error=errbacks)
    killed_again(env, worker, deaths)
    states = [env.app.AsyncResult(task_id).state for task_id in (result.id, "last")]
    assert (states, env.ran) == (["FAILURE"] * 2, [result.id] if told else [])


@pytest.mark.parametrize("deaths", [[LOST, LOST], [TIME_LIMIT]])
def test_callbacks_are_sent_if_hooks_kill_their_process(env: Env, deaths: list[str]) -> None:
    """Such as ``on_success()``: the success of the task has been stored before."""
    env.app.task(name="tell")(env.ran.append)
    result, worker = killed(env, LOST, link=env.app.signature("tell"))
    env.app.backend.store_result(result.id, 5, "SUCCESS")
    env.app.tasks["work"].on_success = lambda *given: env.ran.append("hook")  # type: ignore[method-assign]
    killed_again(env, worker, deaths)
    assert (result.state, env.ran) == ("SUCCESS", [5])


@pytest.mark.parametrize("why", [TIME_LIMIT, LOST])
@pytest.mark.parametrize("acks_late", [True, False])
def test_end_during_a_worker_stop_is_reported(env: Env, why: str, acks_late: bool) -> None:
    """A chain would never end otherwise."""
    env.app.task(name="tell")(env.ran.append)
    last = dict(env.app.signature("work", (2,), options={"task_id": "last"}))
    task = env.task(time_limit=9, max_deliveries=1, acks_late=acks_late)
    result = task.apply_async((1,), chain=[last], link_error=env.app.signature("tell"))
    worker = env.worker(on_demand=True)
    worker.run()
    worker.parts.listener.quiet()
    worker.parts.mediator.quiet()
    worker.pool.end(worker.pool.held[0], why, "it was killed")
    worker.stop()
    states = [env.app.AsyncResult(task_id).state for task_id in (result.id, "last")]
    assert states == ["FAILURE", "FAILURE"]
    env.worker().run()
    assert env.ran == [result.id]
    assert env.app.broker.admin.depths(["celery"])[0][1:4] == (0, 0, 0)


@pytest.mark.parametrize("how", ["revoked", "expired", "revoked while it waits", "poisoned"])
def test_rest_of_a_chain_fails_with_a_task_that_does_not_run(env: Env, how: str) -> None:
    env.app.task(name="tell")(env.ran.append)
    task = env.task(max_deliveries=1)
    last = dict(env.app.signature("work", (2,), options={"task_id": "last"}))
    expires = {"expires": 1.0} if how == "expired" else {}
    result = task.apply_async((1,), chain=[last], link_error=env.app.signature("tell"), **expires)
    if how == "expired":
        env.clock.advance(2)
    elif how == "poisoned":
        own = env.app.broker.consumer.register("dying@test", ["celery"], 1)
        (leased,) = env.app.broker.consumer.lease(["celery"], 1).messages
        env.app.broker.consumer.settle(own, [Release(leased.tag, counted=True)])
        env.app.broker.consumer.deregister()
    elif how == "revoked":
        env.app.control.revoke(result.id)
    worker = env.worker(on_demand=True)
    if how == "revoked while it waits":
        worker.parts.mediator.quiet()
        worker.run()
        worker.parts.mediator._quiet = False
        env.app.control.revoke(result.id)
    for _ in range(4):
        worker.run()
        worker.pool.run()
    worker.run()
    state = "FAILURE" if how == "poisoned" else "REVOKED"
    assert (result.state, env.app.AsyncResult("last").state) == (state, "FAILURE")
    assert env.ran == ([result.id] if how == "poisoned" else []), "like Celery, no errbacks for revoked tasks"


def test_invalid_messages_become_dead_letters(env: Env) -> None:
    task = env.task()
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
        env.app.broker.sender.push([envelope])
        task.delay(len(env.ran))
    worker = env.worker()
    worker.run()
    assert env.ran == [0] * 6
    reasons = [dead.reason for dead in env.app.broker.admin.dead()]
    assert len(reasons) == 6
    assert all(reasons)
    assert env.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    assert env.app.AsyncResult("b").state == "FAILURE"


def test_unknown_task_waits_for_a_worker_that_knows_it(env: Env) -> None:
    env.task()
    unaware_app = env.make_app(task_unknown_delays=(30, 120))
    unaware = env.worker(unaware_app)
    result = env.app.send_task("work", (1,))
    unaware.run()
    assert env.queues() == {"ready": 0, "delayed": 1, "leased": 0}
    unaware.stop()
    knowing = env.worker()
    env.pass_time(knowing, 36)
    assert (env.ran, result.get(timeout=0)) == ([1], [1])


def test_unknown_task_becomes_a_dead_letter(env: Env) -> None:
    env.app.conf.update(task_unknown_delays=(30, 120))
    result = env.app.send_task("nobody.knows", (1,))
    worker = env.worker()
    env.pass_time(worker, 100, step=10)
    assert env.app.broker.admin.dead() == []
    env.pass_time(worker, 100, step=10)
    (dead,) = env.app.broker.admin.dead()
    assert "nobody.knows" in dead.reason
    assert result.state == "FAILURE"


@pytest.mark.parametrize("env", ["memory"], indirect=True)  # faults of the file are in the acceptance tests
def test_worker_continues_after_a_broker_outage(env: Env) -> None:
    assert isinstance(env.app.broker, MemoryStore)
    task = env.task()
    worker = env.worker(on_demand=True)
    results = [task.delay(n) for n in range(2)]
    worker.run()
    env.app.broker.away = True
    assert worker.pool.run() == 2
    worker.run()
    assert all(result.state == "SUCCESS" for result in results)
    env.app.broker.away = False
    worker.run()
    assert env.queues() == {"ready": 0, "delayed": 0, "leased": 0}
    task.delay(9)
    worker.run()
    worker.pool.run()
    assert env.ran == [0, 1, 9]


# -- several workers --


def test_two_workers_share_the_work(env: Env) -> None:
    task = env.task()
    other = env.make_app()
    other_ran: list[int] = []
    other.task(name="work")(other_ran.append)
    task.apply_many([(n,) for n in range(40)])
    workers = [env.worker(on_demand=True), env.worker(other, on_demand=True)]
    for _ in range(200):
        for worker in workers:
            worker.step()
            worker.pool.run(1)
    assert sorted(env.ran + other_ran) == list(range(40))
    assert env.ran
    assert other_ran


def test_messages_of_a_stopped_worker_go_to_another(env: Env) -> None:
    task = env.task()
    first = env.worker(on_demand=True, concurrency=1)
    task.apply_many([(n,) for n in range(3)])
    task.apply_async((3,), countdown=4)
    first.run()
    first.pool.started = list(first.pool.held)
    assert env.queues()["leased"] == 3
    first.stop()
    assert env.ran == [0]  # the running task was finished
    left = env.queues()
    assert (left["leased"], left["ready"] + left["delayed"]) == (0, 3)
    second = env.worker(env.app)
    second.run()
    assert env.ran == [0, 1, 2]
    env.pass_time(second, 5)
    assert env.ran == [0, 1, 2, 3]


def test_cold_stop_requeues_running_tasks_uncounted(env: Env, caplog: pytest.LogCaptureFixture) -> None:
    env.task().delay(1)
    first = env.worker(on_demand=True)
    first.run()
    first.pool.started = list(first.pool.held)
    with caplog.at_level(logging.INFO):
        first.stop("cold")
    assert "is put back" in caplog.text
    assert env.ran == []
    second = env.worker(on_demand=True)
    second.run()
    assert (second.pool.held[0].leased.deliveries, second.pool.held[0].leased.redelivered) == (0, True)


def test_exception_group_is_raised_for_the_caller() -> None:
    """Like from asyncio.TaskGroup; the stored traceback contains that of each member."""
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


@pytest.mark.parametrize("acks_late", [True, False])
@pytest.mark.parametrize("how", ["the callback takes other arguments", "neither store answers as before"])
def test_chain_ends_if_the_callbacks_of_a_stored_success_cannot_be_sent(
    env: Env, acks_late: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker was killed when it had stored the success, and the message has expired when it comes again."""
    wrong = how.startswith("the callback")
    work = env.task(lambda number: number, acks_late=acks_late)
    link, other = (env.app.task(name=name)(lambda number: number) for name in ("link", "other"))
    first = work.s(1).set(expires=60)
    first.link(link.s(2) if wrong else link.s())
    last = chain(first, other.s())()
    env.app.backend.store_result(last.parent.id, 1, states.SUCCESS)
    consumer = env.make_app().broker.consumer
    generation = consumer.register("killed", ["celery"], 1)
    (message,) = consumer.lease(["celery"], 1).messages
    consumer.settle(generation, [Release(message.tag, redelivered=True)])
    consumer.deregister()
    env.clock.advance(100)
    if not wrong:
        store, errors = env.app.backend.store_rows, [BackendError("away for a moment")]

        def store_rows(rows: Any) -> None:
            if errors:
                raise errors.pop()
            store(rows)

        def push(*given: Any) -> None:
            raise PublishError("too large")

        monkeypatch.setattr(env.app.backend, "store_rows", store_rows)
        monkeypatch.setattr(env.app.broker.sender, "push", push)
    worker = env.worker()
    worker.run()
    worker.advance(5)
    assert (env.ran, last.parent.state, last.state) == ([], "SUCCESS", "FAILURE")


@pytest.mark.parametrize("what", ["succeeds", "fails", "retries"])
def test_arguments_that_results_cannot_contain_do_not_change_the_end(tmp_path: Path, what: str) -> None:
    """With result_extended: a success ended as a failure, and a failure called no errbacks."""
    clock = FakeClock()
    app = QWorker(
        "extended", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False,
        security_key="k" * 40, accept_content=["json", "pickle"], task_serializer="pickle",
        result_serializer="json", result_extended=True,
    )  # fmt: skip
    ran: list[str] = []

    @app.task(name="work", bind=True)
    def work(self: Any, value: set[int]) -> int:
        ran.append("work")
        if what == "retries" and not self.request.retries:
            self.retry(countdown=1)
        if what == "fails":
            raise ValueError
        return len(value)

    @app.task(name="told")
    def told(request: Any, error: BaseException, traceback: str) -> None:
        ran.append("told")

    last = chain(work.s({1, 2}).set(link_error=told.s()), app.task(name="next")(lambda number: number).s())()
    with StepWorker(app) as worker:
        worker.advance(3)
    ends = ["FAILURE", "FAILURE"] if what == "fails" else ["SUCCESS", "SUCCESS"]
    assert [last.parent.state, last.state] == ends
    assert ran == {"succeeds": ["work"], "fails": ["work", "told"], "retries": ["work", "work"]}[what]
    assert last.parent.args == "[{1, 2}]"
    app.close()


def test_extended_results_name_their_calls_however_they_end() -> None:
    """As in Celery, also of a call that has not run, and of one that tells of its progress."""
    clock = FakeClock()
    app = QWorker(
        "extended", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False,
        result_extended=True,
    )  # fmt: skip
    seen: list[Any] = []

    @app.task(name="work", bind=True)
    def work(self: Any, value: int) -> int:
        self.update_state(state="PROGRESS")
        seen.append(self.AsyncResult(self.request.id))
        seen.append((seen[-1].state, seen[-1].name, seen[-1].args))
        return 6 // value

    late = work.apply_async((1,), expires=1, countdown=2)
    revoked = work.apply_async((1,), countdown=2)
    revoked.revoke()
    after = chain(work.s(0), work.s(7))()
    unknown = app.send_task("nowhere", (1,))
    with StepWorker(app) as worker:
        worker.advance(5)
        worker.advance(3600)
    assert seen[1] == ("PROGRESS", "work", [0])
    assert [(each.state, each.name, each.args) for each in (late, revoked, after.parent, after)] == [
        ("REVOKED", "work", [1]),
        ("REVOKED", "work", [1]),
        ("FAILURE", "work", [0]),
        ("FAILURE", "work", [7]),
    ]
    assert {each.queue for each in (late, revoked, after.parent)} == {"celery"}
    assert (unknown.state, unknown.name, unknown.queue) == ("FAILURE", "nowhere", "celery")
    app.close()


DEEP: Any = 1
for _ in range(MAX_DEPTH - 1):
    DEEP = [DEEP]


@pytest.mark.parametrize("what", ["succeeds", "fails", "retries", "expires"])
def test_deep_arguments_change_no_end(what: str) -> None:
    """They fit a message, but not one level deeper in a result; with STARTED they ended a thread of the
    pool."""
    clock = FakeClock()
    app = QWorker(
        "deep", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False,
        accept_content=["json", "msgpack"], task_serializer="msgpack", result_serializer="json",
        result_extended=True, task_track_started=True,
    )  # fmt: skip
    ran: list[str] = []

    @app.task(name="work", bind=True)
    def work(self: Any, value: Any) -> int:
        ran.append("work")
        if what == "retries" and not self.request.retries:
            self.retry(countdown=1)
        if what == "fails":
            raise ValueError
        return 5

    @app.task(name="told")
    def told(request: Any, error: BaseException, traceback: str) -> None:
        ran.append(f"told {type(error).__name__}")

    @app.task(name="next")
    def following(value: Any, deep: Any) -> Any:
        return value

    late = {"countdown": 2, "expires": 1} if what == "expires" else {}
    result = chain(work.s(DEEP).set(link_error=told.s(), **late), following.s(DEEP))()
    with StepWorker(app) as worker:
        worker.advance(3)
    ends = {"fails": ["FAILURE", "FAILURE"], "expires": ["REVOKED", "FAILURE"]}
    assert [result.parent.state, result.state] == ends.get(what, ["SUCCESS", "SUCCESS"])
    told_of = {"succeeds": ["work"], "fails": ["work", "told ValueError"], "retries": ["work", "work"]}
    assert ran == told_of.get(what, [])
    app.close()


@pytest.mark.parametrize("what", ["succeeds", "fails", "expires"])
def test_a_chord_of_another_program_has_arguments_that_results_cannot_contain(what: str) -> None:
    """Its body is kept with the results, whatever the serializer of this worker's own calls."""
    clock = FakeClock()
    store = MemoryStore(clock)
    app = QWorker(
        "odd", broker=store, backend="cache+memory://", clock=clock, set_as_current=False,
        accept_content=["json", "yaml"],
    )  # fmt: skip

    @app.task(name="work")
    def work() -> int:
        if what == "fails":
            raise ValueError("real")
        return 5

    plain: dict[str, Any] = {"args": (), "kwargs": {}, "subtask_type": None, "immutable": True}
    message = encode(
        TaskMessage(
            task="work",
            id="first",
            group="g",
            group_index=0,
            serializer="yaml",
            chord={**plain, "task": "body", "args": ({1, 2},), "options": {"task_id": "body"}},
            chain=[{**plain, "task": "work", "options": {"task_id": "last"}}],
            expires="2001-01-01T00:00:00+00:00" if what == "expires" else None,
        )
    )
    store.sender.push([Envelope("celery", message.headers, message.properties, message.body, 0)])
    with StepWorker(app) as worker:
        worker.advance(3)
    ends = {"succeeds": ["SUCCESS", "SUCCESS"], "fails": ["FAILURE", "FAILURE"]}
    assert [app.AsyncResult(id).state for id in ("first", "last")] == ends.get(what, ["REVOKED", "FAILURE"])
    assert what != "fails" or repr(app.AsyncResult("first").result) == "ValueError('real')"
    app.close()


@pytest.mark.parametrize("error", [CancelledError, SystemExit])
def test_an_errback_that_is_cancelled_hides_nothing(error: type[BaseException]) -> None:
    """The task ended with its error, and the other errbacks were not called."""
    clock = FakeClock()
    app = QWorker(
        "cancelled", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False
    )
    ran: list[str] = []

    @app.task(name="work")
    def work() -> None:
        raise ValueError("real")

    @app.task(name="first")
    async def first(request: Any, exception: BaseException, traceback: str) -> None:
        ran.append("first")
        raise error

    @app.task(name="second")
    def second(request: Any, exception: BaseException, traceback: str) -> None:
        ran.append("second")

    result = work.apply_async(link_error=[first.s(), second.s()])
    with StepWorker(app) as worker:
        worker.run()
    assert (repr(result.result), ran) == ("ValueError('real')", ["first", "second"])
    app.close()
