"""Sending schedules: rejected and unreadable schedules, large numbers, and losing the lease."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from qworker.beat.store import Firing, Lease
from qworker.beat.stores import MemoryScheduleStore
from qworker.clock import SYSTEM_CLOCK
from qworker.django.clusters.engine import app
from qworker.django.clusters.scheduling import SENT_AT_ONCE, Scheduler
from qworker.django.models import Schedule
from qworker.errors import PublishError
from qworker.testing.clock import FakeClock


class _Undo(Exception):
    """Rolls back the transaction of a test."""


@pytest.fixture(autouse=True)
def _no_schedules_afterwards(cluster: Any) -> Iterator[None]:
    cluster(name="default", orm="default")
    try:
        with transaction.atomic():
            yield
            raise _Undo
    except _Undo:
        connection.close()


class Refusing(MemoryScheduleStore):
    """Rejects the schedules in *names*."""

    def __init__(self, *names: str) -> None:
        super().__init__(SYSTEM_CLOCK)
        self.names, self.taken = names, list[str]()

    def fire(self, lease: Any, firings: Sequence[Firing], sender: Any) -> list[Firing]:
        if any(each.name in self.names for each in firings):
            raise PublishError("it is too large")
        self.taken += [each.name for each in firings]
        return list(firings)


def make(name: str) -> str:
    due = timezone.now() - timedelta(seconds=5)
    return str(Schedule.objects.create(name=name, func="math.sqrt", args="4", next_run=due, repeats=1).pk)


def test_rejected_schedule_is_reported_and_others_are_sent() -> None:
    first, refused, last = (make(name) for name in ("first", "refused", "last"))
    store = Refusing(refused)
    scheduler = Scheduler(app(), lambda *_: None, store)
    scheduler.step(0.0)
    scheduler.step(0.1)
    assert sorted(store.taken) == sorted([first, last])
    assert [refused in text and "too large" in text for text in scheduler.problems()] == [True]
    left = Schedule.objects.filter(repeats=1).values_list("name", flat=True)
    assert list(left) == ["refused"], "it does not count as sent"


def test_invalid_schedule_is_not_retried_at_once(clock: FakeClock) -> None:
    Schedule.objects.filter(pk=make("wrong")).update(args="open, (")
    scheduler = Scheduler(app(), lambda *_: None, Refusing())
    scheduler.step(clock.monotonic())
    assert scheduler.step(clock.monotonic()) > 0.2, "its time has passed, but it is not retried yet"


def test_row_with_an_invalid_time_does_not_affect_others() -> None:
    good, bad = make("good"), make("bad")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE qworker_schedule SET next_run = '0000-13-45 99:00' WHERE id = %s", [bad])
    store = Refusing()
    scheduler = Scheduler(app(), lambda *_: None, store)
    scheduler.step(0.0)
    scheduler.step(0.1)
    assert store.taken == [good]
    assert any(bad in text for text in scheduler.problems())


class Slow(MemoryScheduleStore):
    """A store where each fire() takes a second. leases, sizes: lease and number of firings of each."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, shared=True)
        self.clock = clock
        self.leases, self.sizes = list[Lease](), list[int]()

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Any) -> list[Firing]:
        self.leases.append(lease)
        self.sizes.append(len(firings))
        self.clock.advance(1.0)
        return list(firings)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock(now=time.time())
    monkeypatch.setattr(app(), "clock", clock)
    return clock


def test_many_schedules_are_sent_in_parts_with_a_renewed_lease(clock: FakeClock) -> None:
    due = timezone.now() - timedelta(seconds=5)
    rows = [Schedule(func="math.sqrt", args="4", next_run=due, repeats=1) for _ in range(3 * SENT_AT_ONCE)]
    Schedule.objects.bulk_create(rows)
    store = Slow(clock)
    scheduler = Scheduler(app(), lambda *_: None, store)
    scheduler.step(clock.monotonic())
    assert store.sizes == [SENT_AT_ONCE] * 3
    beats = [lease.beats for lease in store.leases]
    assert beats == sorted(set(beats)), "the lease is renewed before each part"


def test_sending_stops_when_the_lease_is_lost(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    due = timezone.now() - timedelta(seconds=5)
    rows = [Schedule(func="math.sqrt", args="4", next_run=due, repeats=1) for _ in range(3 * SENT_AT_ONCE)]
    Schedule.objects.bulk_create(rows)

    class Stolen(Slow):
        def fire(self, lease: Lease, firings: Sequence[Firing], sender: Any) -> list[Firing]:
            self.take("another", self.look())
            return super().fire(lease, firings, sender)

    store = Stolen(clock)
    Scheduler(app(), lambda *_: None, store).step(clock.monotonic())
    assert store.sizes == [SENT_AT_ONCE]
    assert [each.message for each in caplog.records if getattr(each, "event", "") == "beat-follows"] == [
        "another is now the leader of the schedulers"
    ]
    assert Schedule.objects.filter(repeats=1).count() == 2 * SENT_AT_ONCE


@pytest.mark.parametrize("catch_up", [True, False])
def test_long_overdue_schedule_does_not_block_others(cluster: Any, clock: FakeClock, catch_up: bool) -> None:
    cluster(name="default", orm="default", catch_up=catch_up)
    old = Schedule.objects.create(
        func="math.sqrt", args="4", schedule_type="I", minutes=1, next_run=datetime(2005, 1, 1, tzinfo=UTC)
    )
    other = make("other")
    store = Slow(clock)
    Scheduler(app(), lambda *_: None, store).step(clock.monotonic())
    assert Schedule.objects.get(pk=other).repeats == 0
    old.refresh_from_db()
    if catch_up:
        assert sum(store.sizes) <= SENT_AT_ONCE + 1
        assert old.next_run == datetime(2005, 1, 1, tzinfo=UTC) + timedelta(minutes=sum(store.sizes) - 1)
    else:
        assert sum(store.sizes) == 2
        assert timedelta(0) <= old.next_run - timezone.now() <= timedelta(minutes=1)
