"""Faults of one entry do not affect the others: invalid fields, and errors of stores, brokers or clocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from qworker import QWorker
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.beat.calls import NAME_HEADER, id_of
from qworker.beat.entry import FIELDS
from qworker.beat.schedule import Schedule
from qworker.beat.service import Beat
from qworker.beat.store import Firing, Lease
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    ConfigurationError,
    DamagedResult,
    EncodeError,
    InvalidSchedule,
    NotSupported,
    PublishError,
    QueueNotFound,
    SecurityError,
)
from qworker.transports.capabilities import FANOUT
from qworker.transports.lease import Envelope, Sender
from tests.support.logging_events import logged
from tests.support.stores import KeepingStore, read
from tests.unit.test_beat_service import FIRST, HOUR, Bench, FakeScheduleStore, SeparateStore, hourly

pytestmark = pytest.mark.one_python  # test_beat_service.py runs the same code with each

RAISED: dict[str, Callable[[], Exception]] = {
    "away": lambda: BackendError("no answer"),
    "broker away": lambda: BrokerUnavailable("no answer"),
    "damaged": lambda: DamagedResult("cannot be read"),
    "not supported": lambda: NotSupported("there is none"),
    "publish": lambda: PublishError("too large"),
    "encode": lambda: EncodeError("an object"),
    "no queue": lambda: QueueNotFound("q"),
    "settings": lambda: ConfigurationError("wrong"),
    "security": lambda: SecurityError("unsigned"),
    "os": lambda: OSError(28, "No space left on device"),
    "overflow": lambda: OverflowError("date value out of range"),
    "value": lambda: ValueError("year 10000 is out of range"),
    "memory": lambda: MemoryError(),
    "recursion": lambda: RecursionError("too deep"),
    "programmer": lambda: AssertionError("who would have thought"),
}
"""Errors that stores, brokers, clocks and user code may raise."""


@pytest.fixture(params=RAISED)
def raised(request: pytest.FixtureRequest) -> Callable[[], Exception]:
    return RAISED[request.param]


def pass_hours(bench: Bench, count: int, after: float = 10.0) -> None:
    """Jump from one full hour to the next, *count* times, and run until *after* seconds past each."""
    for _ in range(count):
        before_next = (HOUR - bench.clock.now() % HOUR) % HOUR - 1.0
        if before_next > 1.0:
            bench.step()
            bench.clock.advance(before_next)
        bench.run(1.0 + after)


def assert_others_are_called(bench: Bench, bad: str = "bad") -> None:
    """Check that ``first`` and ``last`` are called on time for three hours, and that *bad* is reported."""
    bench.step()
    pass_hours(bench, 3)
    for name in ("first", "last"):
        assert [due for called, due in bench.calls if called == name] == [
            FIRST,
            FIRST + HOUR,
            FIRST + 2 * HOUR,
        ]
        late = [slot.at - slot.due for slot in bench.store.slots(name)]
        assert max(late) < 5, "it may take some steps to find the failing entry"
    assert bench.crashes == []
    assert any(bad in text for text in bench.beat.problems())


def between_others(bad: Mapping[str, Any]) -> dict[str, Any]:
    return {"first": hourly(), "bad": dict(bad), "last": hourly()}


# -- values of fields --


class RaisingValue:
    """Raises on every operation."""

    def __init__(self, make: Callable[[], Exception]) -> None:
        self._make = make

    def _raise(self, *_: Any) -> Any:
        raise self._make()

    __eq__ = __lt__ = __float__ = __iter__ = __len__ = __bool__ = __str__ = __repr__ = __getattr__ = _raise
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_field_value_that_raises_does_not_affect_other_entries(
    field: str, raised: Callable[[], Exception]
) -> None:
    assert_others_are_called(Bench(between_others(hourly(**{field: RaisingValue(raised)}))))


class RaisingZone(tzinfo):
    def __init__(self, make: Callable[[], Exception]) -> None:
        self._make = make

    def utcoffset(self, when: datetime | None) -> timedelta:
        raise self._make()

    def dst(self, when: datetime | None) -> timedelta:
        raise self._make()


class RaisingSchedule(Schedule):
    """A custom schedule that raises in next() or previous(), or returns a datetime with a raising zone."""

    def __init__(self, where: str, make: Callable[[], Exception]) -> None:
        super().__init__()
        self._where = where
        self._make = make

    def next(self, after: datetime) -> datetime | None:
        if self._where == "next":
            raise self._make()
        if self._where == "zone":
            return datetime(2023, 11, 14, 23, tzinfo=RaisingZone(self._make))
        return datetime.fromtimestamp(FIRST, UTC)

    def previous(self, before: datetime) -> datetime | None:
        raise self._make()

    def words(self) -> str:
        raise self._make()

    def __repr__(self) -> str:
        raise self._make()


@pytest.mark.parametrize("where", ["next", "previous", "zone"])
def test_raising_schedule_does_not_affect_other_entries(where: str, raised: Callable[[], Exception]) -> None:
    bench = Bench(between_others(hourly(schedule=RaisingSchedule(where, raised))))
    pass_hours(bench, 3)
    assert len([name for name, _ in bench.calls if name != "bad"]) == 6
    assert bench.crashes == []
    if isinstance(raised(), OverflowError) and where != "zone":  # at an end of the calendar
        assert len([name for name, _ in bench.calls if name == "bad"]) == (where == "previous")
    else:
        assert any("bad" in text for text in bench.beat.problems())


def test_unsupported_schedule_does_not_affect_other_entries() -> None:
    """Such as a solar schedule of another process where ephem is not installed."""

    class Sun(dict):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            raise ConfigurationError("schedules by the sun need ephem")

    assert_others_are_called(Bench(between_others(hourly(schedule=Sun()))))


# -- errors of calls --


def test_raising_apply_async_does_not_affect_other_entries(raised: Callable[[], Exception]) -> None:
    bench = Bench(between_others(hourly(task="proj.bad")))

    class RaisingTask(bench.app.Task):  # type: ignore[misc,name-defined]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            raise raised()

    bench.app.task(name="proj.bad", base=RaisingTask)(lambda: None)
    assert_others_are_called(bench)


class RefusingBroker(KeepingStore):
    """Raises when a message of the entry ``bad`` is pushed, as if its queue could not be declared.
    make: makes the error; None: accept all."""

    make: Callable[[], Exception] | None = None

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        if self.make is not None and any(read(each).headers[NAME_HEADER] == "bad" for each in envelopes):
            raise self.make()
        super().push(envelopes, timeout)


class RefusingBrokerBench(Bench):
    """A bench with a RefusingBroker."""

    def __init__(
        self,
        entries: dict[str, Any],
        store_type: type[FakeScheduleStore] = FakeScheduleStore,
        **settings: Any,
    ) -> None:
        super().__init__(entries, store_type, **settings)
        self.broker = RefusingBroker()
        self.app = QWorker(
            "proj",
            broker=self.broker,
            backend="cache+memory://",
            clock=self.clock,
            set_as_current=False,
            beat_schedule=entries,
        )
        self.beat = self.another()


@pytest.mark.parametrize("store_type", [FakeScheduleStore, SeparateStore])
def test_refused_message_does_not_affect_other_entries(
    store_type: type[FakeScheduleStore], raised: Callable[[], Exception]
) -> None:
    bench = RefusingBrokerBench(between_others(hourly()), store_type)
    bench.broker.make = raised
    assert_others_are_called_despite_push_errors(bench, store_type)


def assert_others_are_called_despite_push_errors(
    bench: RefusingBrokerBench, store_type: type[FakeScheduleStore]
) -> None:
    pass_hours(bench, 3)
    calls = list(bench.calls)
    for name in ("first", "last"):
        assert [due for called, due in calls if called == name] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]
    assert "bad" not in {name for name, _ in calls}
    assert bench.crashes == []
    outage = isinstance(bench.broker.make and bench.broker.make(), BackendError | BrokerUnavailable)
    assert any("bad" in text for text in bench.beat.problems()) or (
        store_type is SeparateStore and not outage
    )
    bench.broker.make = None
    bench.run(5)
    assert ("bad" in {name for name, _ in bench.calls}) == outage, "only outages are caught up"
    pass_hours(bench, 1)
    assert ("bad", FIRST + 3 * HOUR) in bench.calls
    assert bench.store.pending() == []
    assert bench.beat.problems() == ()


@pytest.mark.parametrize("store_type", [FakeScheduleStore, SeparateStore])
def test_many_refused_messages_do_not_delay_other_entries(store_type: type[FakeScheduleStore]) -> None:
    """All entries of one queue are refused; those of other queues are called on time."""
    entries = {f"e{number:04}": hourly(options={"queue": f"q{number % 10}"}) for number in range(600)}

    class OneQueue(RefusingBroker):
        def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
            self.tries += 1
            if any(each.queue == "q3" for each in envelopes):
                raise BrokerUnavailable("PRECONDITION_FAILED - inequivalent arg")
            KeepingStore.push(self, envelopes, timeout)

    bench = RefusingBrokerBench(entries, store_type)
    bench.broker = OneQueue()
    bench.app.stores.use_broker(bench.broker)
    bench.beat = bench.another()
    pass_hours(bench, 2)
    assert len(bench.calls) == 2 * 540
    bench.broker.tries = 0
    pass_hours(bench, 1)
    assert len(bench.calls) == 3 * 540
    assert bench.broker.tries < 150, "a step tries only one of the refused messages"


@pytest.mark.parametrize("count", [1, 200])
def test_unavailable_broker_is_retried_a_few_times_a_second(count: int) -> None:
    """Each attempt may last until a timeout. Once the broker is back, all entries are called at once."""
    bench = Bench({f"e{number}": hourly() for number in range(count)})
    bench.at(FIRST - 1)
    bench.broker.failures = 10**6
    bench.run(12)
    tries = 10**6 - bench.broker.failures
    assert 6 < tries < 100
    bench.broker.failures = 0
    bench.run(1.5)
    assert len(bench.calls) == count


# -- overlap --


class FailingResults(MemoryBackend):
    """make: makes the error for *ids*; None: raise nothing."""

    make: Callable[[], Exception] | None = None
    for_all = False
    ids: Collection[str] = ()
    hung: threading.Event | None = None

    def read_many(self, ids: Collection[str]) -> dict[str, Any]:
        if self.hung is not None:
            self.hung.wait(60)
        if self.make is not None and (self.for_all or not set(self.ids).isdisjoint(ids)):
            raise self.make()
        return super().read_many(ids)

    def get(self, task_id: str) -> Any:
        if self.make is not None and (self.for_all or task_id in self.ids):
            raise self.make()
        return super().get(task_id)


class OverlapBench(Bench):
    """Entries ``first`` and ``last`` without overlap, ``well`` with ``skip``, and ``bad``."""

    def __init__(self, overlap: str = "skip", **settings: Any) -> None:
        self.results: FailingResults | None = None
        entries = {**between_others(hourly(overlap=overlap)), "well": hourly(overlap="skip")}
        super().__init__(entries, **settings)
        self.results = FailingResults("cache+memory://", self.app.conf, self.clock)
        self.app = QWorker(
            "proj",
            broker=self.broker,
            backend=self.results,
            clock=self.clock,
            set_as_current=False,
            beat_schedule=entries,
        )
        self.beat = self.another()

    def ended(self, name: str, due: float) -> str:
        assert self.results is not None
        task_id = id_of("proj", name, due)
        assert self.results.store(task_id, self.results.meta(task_id, "SUCCESS", None))
        return task_id


@pytest.mark.parametrize("overlap", ["skip", "replace"])
def test_unreadable_result_does_not_affect_other_entries(
    overlap: str, raised: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    bench = OverlapBench(overlap)
    results = bench.results
    assert results is not None
    pass_hours(bench, 1)
    bench.ended("well", FIRST)
    results.ids, results.make = [bench.ended("bad", FIRST)], raised
    pass_hours(bench, 1, after=1.0)
    called = {name for name, due in bench.calls if due == FIRST + HOUR}
    kind = raised()
    away = isinstance(kind, BackendError) and not isinstance(kind, DamagedResult)
    waits = away and overlap == "skip"
    assert called == {"first", "last", "well", *([] if waits else ["bad"])}, (
        "a call with an unreadable result counts as finished"
    )
    results.make = None
    bench.run(2)
    assert {name for name, due in bench.calls if due == FIRST + HOUR} == {"first", "last", "well", "bad"}
    assert bench.crashes == []
    assert "entry-noted" in logged(caplog) or (overlap == "replace" and away)
    assert bench.beat.problems() == ()


@pytest.mark.parametrize("overlap", ["skip", "replace"])
def test_unavailable_result_store_delays_only_entries_that_need_it(
    overlap: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = OverlapBench(overlap)
    results = bench.results
    assert results is not None
    pass_hours(bench, 1)
    results.for_all, results.make = True, RAISED["away"]
    pass_hours(bench, 1, after=60.0)
    waits = ["well"] if overlap == "replace" else ["bad", "well"]
    late = {name: [slot.at - slot.due for slot in bench.store.slots(name)] for name in ("first", "last")}
    assert max(max(each) for each in late.values()) < 0.3
    assert (
        sorted({"first", "last", "bad", "well"} - {name for name, due in bench.calls if due > FIRST}) == waits
    )
    assert logged(caplog).count("entry-noted") == len(waits), "each is logged once"
    assert "beat-waits" not in logged(caplog)
    results.make = None
    bench.ended("well", FIRST)
    bench.ended("bad", FIRST)
    bench.run(1)
    assert {name for name, due in bench.calls if due > FIRST} == {"first", "last", "bad", "well"}


def test_hung_result_store_delays_only_entries_that_need_it() -> None:
    """Only entries that need results wait, and the lease is renewed."""
    bench = OverlapBench()
    results = bench.results
    assert results is not None
    pass_hours(bench, 1)
    bench.ended("well", FIRST)
    bench.step()
    bench.clock.advance(FIRST + HOUR - bench.clock.now())
    results.hung = threading.Event()
    try:
        for _ in range(3):
            bench.step()
            bench.clock.advance(0.3)
        assert {name for name, due in bench.calls if due > FIRST} == {"first", "last"}
        assert bench.beat.leadership.lease is not None
        asking = [each for each in threading.enumerate() if each.name == "beat-results"]
        assert len(asking) == 1, "only one thread waits for the results"
    finally:
        results.hung.set()
    asking[0].join(60)
    results.hung = None
    bench.run(1)
    assert {name for name, due in bench.calls if due > FIRST} == {"first", "last", "well"}


UNSUPPORTED_OVERLAPS: dict[str, tuple[dict[str, Any], dict[str, Any], frozenset[Any], str]] = {
    "results disabled": ({"overlap": "skip"}, {"backend": "disabled://"}, frozenset(), "results"),
    "none by setting": ({"overlap": "skip"}, {"task_ignore_result": True}, frozenset(), "ignore_result"),
    "none by the call": (
        {"overlap": "skip", "options": {"ignore_result": True}},
        {},
        frozenset(),
        "ignore_result",
    ),
    "none by its task": ({"overlap": "skip", "task": "proj.quiet"}, {}, frozenset(), "ignore_result"),
    "no revocation": ({"overlap": "replace"}, {}, frozenset([FANOUT]), "revokes"),
}
"""Fields of the entry, settings, what the broker lacks, and a word of the message."""


@pytest.mark.parametrize("kind", UNSUPPORTED_OVERLAPS)
def test_unsupported_overlap_is_reported_and_ignored(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    fields, settings, lacks, word = UNSUPPORTED_OVERLAPS[kind]
    bench = Bench(between_others(hourly(**fields)), **settings)
    bench.broker.lacks = lacks
    bench.app.task(name="proj.quiet", ignore_result=True)(lambda: None)
    bench.beat = bench.another()
    assert_others_are_called(bench)
    assert [due for name, due in bench.calls if name == "bad"] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]
    assert logged(caplog).count("entry-noted") == 1
    (problem,) = bench.beat.problems()
    assert word in problem
    assert bench.broker.revoked == []
    with pytest.raises(InvalidSchedule, match=word):
        bench.schedules.add(
            "another",
            fields.get("task", "proj.report"),
            60,
            **{name: value for name, value in fields.items() if name != "task"},
        )
    bench.schedules.add("another", fields.get("task", "proj.report"), 60, options=fields.get("options", {}))
    with pytest.raises(InvalidSchedule, match=word):
        bench.schedules.set("another", overlap=fields["overlap"])
    bench.schedules.pause("bad")  # an edit of other fields is accepted
    bench.schedules.set("bad", overlap="allow")
    bench.run(1)
    assert bench.beat.problems() == ()


def test_overlap_skip_is_rejected_with_rpc_results() -> None:
    bench = Bench({}, backend="rpc://")
    with pytest.raises(InvalidSchedule, match="rpc://"):
        bench.schedules.add("a", "proj.report", 60, overlap="skip")
    assert bench.schedules.add("a", "proj.report", 60, overlap="replace").entry is not None


@pytest.mark.parametrize("make", [RAISED["not supported"], RAISED["broker away"], RAISED["settings"]])
def test_failing_revocation_does_not_affect_other_entries(make: Callable[[], Exception]) -> None:
    class FailingRevocations(KeepingStore):
        make: Callable[[], Exception] | None = None

        def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
            if self.make is not None:
                raise self.make()
            super().revoke(ids, terminate, signal)

    bench = Bench(between_others(hourly(overlap="replace")))
    bench.broker = FailingRevocations()
    bench.broker.make = make
    bench.app.stores.use_broker(bench.broker)
    bench.beat = bench.another()
    assert_others_are_called(bench)
    assert [due for name, due in bench.calls if name == "bad"] == [FIRST, FIRST + HOUR, FIRST + 2 * HOUR]
    bench.broker.make = None
    bench.run(1)
    revoked = [ids for ids, _, _ in bench.broker.revoked]
    away = isinstance(make(), BrokerUnavailable)
    assert revoked == ([[id_of("proj", "bad", FIRST + HOUR)]] if away else [])


# -- the store of schedules, and leadership --


class FailingStore(FakeScheduleStore):
    """Raises when a slot of ``bad`` is taken, like a server that refuses its messages."""

    make: Callable[[], Exception] | None = None

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        if self.make is not None and any(each.name == "bad" for each in firings):
            raise self.make()
        return super().fire(lease, firings, sender)


def test_refused_slot_does_not_affect_other_entries(raised: Callable[[], Exception]) -> None:
    bench = Bench(between_others(hourly()), FailingStore)
    assert isinstance(bench.store, FailingStore)
    bench.store.make = raised
    assert_others_are_called(bench)


def test_lease_lost_between_batches_loses_and_repeats_no_call() -> None:
    """The other leader makes the remaining calls, and repeats none."""

    class LeaseLosingStore(FakeScheduleStore):
        beats: list[Beat]
        countdown = 0

        def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
            free = super().fire(lease, firings, sender)
            self.countdown -= 1
            if self.countdown == 0:
                self.take("they", self.look())
            return free

    names = [f"e{number}" for number in range(40)]
    for countdown in (1, 2, 3):
        bench = Bench({name: hourly() for name in names}, LeaseLosingStore)
        assert isinstance(bench.store, LeaseLosingStore)
        bench.at(FIRST - 1)
        bench.broker.failures = 3  # so that calls are made in several batches
        bench.store.countdown = countdown
        bench.at(FIRST + 2)
        assert bench.store.countdown <= 0
        bench.run(2)
        assert sorted(bench.calls) == sorted((name, FIRST) for name in names)


# -- clocks --


@pytest.mark.parametrize(
    "now", [253_402_300_800.0 * 2, 253_402_300_799.0, -62_135_596_801.0, -1.0, 0.0, 1e18]
)
def test_calls_continue_after_the_clock_showed_nonsense(now: float) -> None:
    """Calls continue when the clock is right again."""
    bench = Bench({"a": hourly(), "b": {"task": "t", "schedule": 60}})
    bench.at(FIRST - 100)
    right = bench.clock.now()
    bench.clock.jump(now - right)
    bench.step()
    bench.step()
    bench.clock.jump(right - bench.clock.now())
    bench.step()
    bench.at(FIRST + HOUR)
    assert ("a", FIRST + HOUR) in bench.calls
    assert bench.crashes == []
    assert len(bench.calls) == len(set(bench.calls))


def test_calls_continue_after_the_clock_showed_another_year() -> None:
    """It shows another year for a moment; afterwards, entries are called by the right time."""
    bench = Bench({"a": hourly(), "b": hourly(catch_up=5)}, beat_history_expires=HOUR)
    bench.at(FIRST)
    right = bench.clock.now()
    bench.clock.jump(365 * 24 * HOUR)
    bench.run(1)
    bench.clock.jump(right + 1 - bench.clock.now())
    bench.at(FIRST + 2 * HOUR)
    for name in ("a", "b"):
        dues = [due for called, due in bench.calls if called == name]
        assert len(dues) == len(set(dues))
        assert {FIRST, FIRST + HOUR, FIRST + 2 * HOUR} <= set(dues)


def test_entry_with_a_last_due_time_in_the_far_future_is_called() -> None:
    bench = Bench({"a": hourly()})
    bench.step()
    lease = bench.beat.leadership.lease
    assert lease is not None
    row = bench.store.row("a")
    assert row is not None
    assert row.state is not None
    bench.store.note(lease, {"a": row.state._replace(last_due=FIRST + 10_000 * HOUR)})
    bench.beat.closed()
    bench.beat = bench.another()
    bench.at(FIRST)
    assert bench.calls == [("a", FIRST)]


@pytest.mark.parametrize("catch_up", ["latest", 1000])
def test_number_of_due_times_examined_within_the_jitter_is_limited(catch_up: Any) -> None:
    """With intervals of a millisecond and a jitter of a day, 86 million due times are still to come."""

    class CountingSchedule(Schedule):
        asked = 0

        def next(self, after: datetime) -> datetime | None:
            return after + timedelta(milliseconds=1)

        def previous(self, before: datetime) -> datetime | None:
            CountingSchedule.asked += 1
            return before - timedelta(milliseconds=1)

        def words(self) -> str:
            return "often"

    bench = Bench({"a": {"task": "t", "schedule": CountingSchedule(), "jitter": 86400, "catch_up": catch_up}})
    bench.step()
    bench.clock.advance(86400)
    bench.step()
    assert 0 < CountingSchedule.asked <= 20_000


# -- removed, and added again --


def test_entry_readded_before_a_step_starts_with_fresh_state() -> None:
    bench = Bench({})
    bench.step()
    for _ in range(3):
        before = len(bench.calls)
        added = bench.schedules.add("again", "t", 10, max_runs=1)
        assert bench.schedules.next(added) is not None
        bench.run(15)
        assert len(bench.calls) == before + 1
        assert bench.schedules.next(bench.schedules["again"]) is None
        bench.schedules.remove("again")


def test_late_note_for_a_removed_entry_is_ignored_by_its_successor() -> None:
    """The leader may note a state after the entry was removed and another of its name was added."""
    bench = Bench({})
    bench.step()
    bench.schedules.add("again", "t", 10, max_runs=1)
    bench.run(15)
    row = bench.store.row("again")
    assert row is not None
    assert row.state is not None
    bench.schedules.remove("again")
    bench.schedules.add("again", "t", 10, max_runs=1)
    lease = bench.beat.leadership.lease
    assert lease is not None
    bench.store.note(lease, {"again": row.state})
    assert bench.schedules.next(bench.schedules["again"]) is not None
    bench.run(15)
    assert len(bench.calls) == 2


def test_changed_entry_keeps_its_state() -> None:
    bench = Bench({})
    bench.step()
    bench.schedules.add("a", "t", 10, max_runs=2)
    bench.run(11)
    bench.schedules.set("a", args=[1])
    bench.schedules.pause("a")
    bench.run(30)
    bench.schedules.resume("a")
    bench.run(60)
    assert len(bench.calls) == 2


def test_entry_of_an_older_version_keeps_its_state() -> None:
    """Its edit and its state have no mark of the entry they belong to."""
    bench = Bench({})
    bench.store.edit("old", b'{"fields":{"task":"t","schedule":{"every":10.0},"max_runs":1},"added":true}', 0)
    bench.run(15)
    assert len(bench.calls) == 1
    bench.beat.closed()
    bench.beat = bench.another()
    bench.run(30)
    assert len(bench.calls) == 1


# -- rows of removed entries --


@pytest.mark.parametrize("led", ["always", "between", "afterwards"])
def test_removed_entries_leave_no_rows(led: str) -> None:
    bench = Bench({"kept": hourly()})
    bench.step()
    if led != "always":
        bench.beat.closed()
    for number in range(300):
        bench.schedules.add(f"e{number}", "t", 0.5)
        if led == "always" and number % 50 == 0:
            bench.run(1.5)
    if led == "between":
        bench.beat = bench.another()
        bench.run(3)
        bench.beat.closed()
    for number in range(300):
        bench.schedules.remove(f"e{number}")
    if led != "always":
        bench.beat = bench.another()
    bench.run(3)
    assert [row.name for row in bench.store.rows()] == ["kept"]
    assert [each.name for each in bench.schedules] == ["kept"]


def test_rows_of_entries_of_another_process_are_kept() -> None:
    """The state of an entry that is only in the settings of another process is kept."""
    theirs = Bench({"theirs": hourly(max_runs=1)})
    theirs.at(FIRST)
    theirs.beat.closed()
    ours = Bench({"ours": hourly()})
    ours.store, ours.clock = theirs.store, theirs.clock
    ours.app.clock = theirs.clock
    ours.beat = ours.another()
    ours.run(5)
    assert sorted(row.name for row in theirs.store.rows()) == ["ours", "theirs"]


def test_entry_readded_while_its_row_is_pruned_is_kept() -> None:
    class LateEditStore(FakeScheduleStore):
        edits: list[Callable[[], Any]] = []

        def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
            while self.edits:
                self.edits.pop()()
            super().prune(lease, versions)

    bench = Bench({}, LateEditStore)
    assert isinstance(bench.store, LateEditStore)
    bench.step()
    bench.schedules.add("a", "t", 10)
    bench.schedules.remove("a")
    bench.store.edits.append(lambda: bench.schedules.add("a", "t", 10, args=["again"]))
    bench.run(15)
    assert [sent.body.args for sent in bench.broker.sent] == [("again",)]
