"""Schedules in the database: what is sent after failures between the ledger and the broker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import override_settings
from django.utils import timezone

from qworker.beat.leadership import SWEEP_SECONDS
from qworker.beat.store import PENDING
from qworker.beat.store_sql import SQLScheduleStore
from qworker.beat.stores import FileDatabase
from qworker.django.clusters.scheduling import Scheduler
from qworker.django.conf import conf
from qworker.django.execution import work
from qworker.django.execution.calls import package_of
from qworker.django.models import Schedule, Task
from qworker.django.signing import SignedPackage
from qworker.django.transports.packages import text_of
from qworker.errors import BrokerUnavailable, Ignore, Reject
from qworker.message.context import Context, pop, push
from qworker.testing.clock import FakeClock
from qworker.transports.lease import Envelope
from qworker.transports.sql.embedded import Database

DUE = datetime(2024, 3, 1, 12, tzinfo=UTC)


class Sender:
    """A broker in another place. failing: one item for each next call that fails; True if it stores the
    messages first."""

    def __init__(self) -> None:
        self.packages: list[dict[str, Any]] = []
        self.queues: list[str] = []
        self.failing: list[bool] = []

    def push(self, envelopes: list[Envelope]) -> None:
        stored = self.failing.pop(0) if self.failing else None
        if stored is not False:
            self.packages += [SignedPackage.loads(text_of(each.body)) for each in envelopes]
            self.queues += [each.queue for each in envelopes]
        if stored is not None:
            raise BrokerUnavailable("it does not answer")

    @property
    def ids(self) -> list[str]:
        return [package["id"] for package in self.packages]


class Bench:
    """A scheduler with its own ledger in a file, and a broker in another place."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.clock = FakeClock(DUE.timestamp() + 1)
        self.sender = Sender()
        self.scheduler = self.another()

    def another(self, cluster: str = "default") -> Scheduler:
        """Return a scheduler of another process with the same ledger."""
        app: Any = SimpleNamespace(
            clock=self.clock,
            broker=SimpleNamespace(sender=self.sender),
            conf=SimpleNamespace(beat_history_expires=3600.0),
        )
        scope = f"django.{conf.prefix}.{cluster}"
        self.store = SQLScheduleStore(FileDatabase(Database(self.file)), scope, self.clock)
        return Scheduler(app, lambda _name, error: pytest.fail(str(error)), self.store)

    def turn(self, times: int = 1, scheduler: Scheduler | None = None) -> None:
        for _ in range(times):
            (scheduler or self.scheduler).step(self.clock.monotonic())

    def outcomes(self, row: Schedule) -> list[str]:
        return [slot.outcome for slot in self.store.slots(str(row.pk))]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "ledger.db")


def hourly(**fields: Any) -> Schedule:
    made: Schedule = Schedule.objects.create(
        **{"func": "math.sqrt", "args": "4", "schedule_type": "H", "next_run": DUE, **fields}
    )
    return made


@pytest.mark.parametrize("stored", [False, True])
def test_unavailable_broker_loses_no_due_time(bench: Bench, stored: bool) -> None:
    """stored: the broker has the task, but its reply was lost. Then the task is sent twice, with one id."""
    row = hourly()
    bench.sender.failing = [stored]
    bench.turn()
    assert len(bench.sender.ids) == stored
    assert bench.outcomes(row) == [PENDING]
    bench.turn(2)
    assert len(bench.sender.ids) == 1 + stored
    assert len(set(bench.sender.ids)) == 1
    assert PENDING not in bench.outcomes(row)
    row.refresh_from_db()
    assert row.next_run == DUE + timedelta(hours=1)
    assert row.task == bench.sender.ids[0]


def test_next_leader_sends_pending_tasks(bench: Bench) -> None:
    hourly()
    once = hourly(schedule_type="O", args="9")
    bench.sender.failing = [False]
    bench.turn()
    other = bench.another()
    for _ in range(12):  # until the lease has expired
        bench.clock.advance(0.3)
        bench.turn(scheduler=other)
    assert sorted(package["args"] for package in bench.sender.packages) == [(4,), (9,)]
    assert not Schedule.objects.filter(pk=once.pk).exists()


def test_pending_task_of_a_deleted_schedule_is_not_sent(bench: Bench) -> None:
    row = hourly()
    bench.sender.failing = [False]
    bench.turn()
    Schedule.objects.all().delete()
    bench.turn(2)
    assert bench.sender.packages == []
    assert bench.outcomes(row) != [PENDING]


def test_each_cluster_sends_its_own_schedules(bench: Bench) -> None:
    hourly()
    hourly(cluster="long", args="9")
    bench.turn(2)
    with override_settings(Q_CLUSTER={"name": "default", "cluster_name": "long"}):
        bench.turn(2, bench.another("long"))
    assert bench.sender.queues == ["default", "long"]


def test_ledger_is_swept(bench: Bench) -> None:
    row = hourly(schedule_type="O", repeats=1)
    bench.turn(2)
    assert len(bench.outcomes(row)) == 1
    bench.clock.advance(3600 + SWEEP_SECONDS)
    bench.turn(2)
    assert bench.outcomes(row) == []


@pytest.fixture
def twice(bench: Bench) -> Callable[..., Any]:
    """Return a function that runs the package of a schedule, like a worker."""
    hourly()
    bench.turn()

    def run(**more: Any) -> Any:
        return work.run_package(SignedPackage.dumps({**bench.sender.packages[0], **more}))

    return run


def ended(identity: str, success: bool) -> None:
    now = timezone.now()
    Task.objects.create(
        id=identity, name="n", func="math.sqrt", started=now, stopped=now, success=success, result=2.0
    )


@pytest.mark.parametrize(
    ("success", "more", "runs"),
    [
        (True, {}, False),
        (False, {}, False),
        (False, {"ack_failure": False}, True),  # a failure is run again
        (True, {"ack_failure": False}, False),
    ],
)
def test_duplicate_task_of_a_due_time_is_not_run(
    bench: Bench, twice: Callable[..., Any], success: bool, more: dict[str, Any], runs: bool
) -> None:
    assert twice(**more) == 2.0
    ended(bench.sender.ids[0], success)
    if runs:
        assert twice(**more) == 2.0
        return
    with pytest.raises(Ignore, match="has run already"):
        twice(**more)


hooked: list[Task] = []


@pytest.mark.parametrize("success", [True, False])
def test_hook_of_a_redelivered_task_gets_the_stored_end(
    bench: Bench, twice: Callable[..., Any], success: bool
) -> None:
    """The worker may have died before calling the hook."""
    ended(bench.sender.ids[0], success)
    stopped = DUE - timedelta(days=1)
    Task.objects.update(stopped=stopped)
    hooked.clear()
    again = Context(id=bench.sender.ids[0], delivery_info={"redelivered": True})
    token = push(again, SimpleNamespace(name="run", app=SimpleNamespace(clock=bench.clock)))
    try:
        with pytest.raises(Ignore, match="has run already"):
            twice(hook=f"{__name__}.hooked.append")
    finally:
        pop(token)
    (task,) = hooked
    assert (task.success, task.result, task.stopped) == (success, 2.0, stopped)
    assert Task.objects.get().stopped == stopped


def test_task_is_requeued_if_the_database_is_unavailable(bench: Bench, twice: Callable[..., Any]) -> None:
    def failing(*_: Any) -> Any:
        raise OperationalError("the database system is not yet accepting connections")

    with connection.execute_wrapper(failing), pytest.raises(Reject, match="cannot determine whether") as told:
        twice()
    assert told.value.requeue
    assert twice() == 2.0


def test_task_without_schedule_may_repeat_an_id() -> None:
    package = package_of("math.sqrt", (4,), {}, {"id": "a" * 32})
    ended("a" * 32, True)
    assert work.run_package(SignedPackage.dumps(package)) == 2.0


def test_each_cluster_has_its_own_ledger(bench: Bench) -> None:
    from qworker.django.clusters.engine import app

    for name in ("default", "long"):
        with override_settings(Q_CLUSTER={"name": "shop", "cluster_name": name}):
            scheduler = Scheduler(app(), lambda *_: None)
            assert scheduler._store._scope == f"django.shop.{name}"  # type: ignore[attr-defined]
