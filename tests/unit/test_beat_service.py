"""The beat service, step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import QWorker, signals
from qworker.beat.api import Schedules
from qworker.beat.calls import DUE_HEADER, NAME_HEADER, id_of
from qworker.beat.catalog import Edit
from qworker.beat.overlap import Question
from qworker.beat.schedule import Schedule
from qworker.beat.serialization import to_json
from qworker.beat.service import Beat
from qworker.beat.store import LEASE_SECONDS, PENDING, EntryState, Firing, Lease, Slot
from qworker.beat.stores import MemoryScheduleStore
from qworker.cli.beat.shown import whole
from qworker.errors import BackendError
from qworker.testing.clock import START, FakeClock
from qworker.testing.store import MemoryStore
from qworker.testing.worker import StepWorker
from qworker.transports.lease import Sender
from tests.support.logging_events import logged
from tests.support.stores import KeepingStore, make_app

HOUR = 3600.0
FIRST = datetime(2023, 11, 14, 23, tzinfo=UTC).timestamp()
"""The first full hour after START."""


class FakeScheduleStore(MemoryScheduleStore):
    """away: while True, calls raise BackendError. pending_slots: what pending() returns. swept: arguments of
    sweep()."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, shared=True)
        self.away = False
        self.pending_slots: dict[tuple[str, float], Slot] = {}
        self.swept: list[float] = []
        self.edit_after_renewal: tuple[str, bytes, int] | None = None

    def renew(self, lease: Lease) -> Lease:
        self._check_available()
        found = super().renew(lease)
        if self.edit_after_renewal is not None:
            super().edit(*self.edit_after_renewal)
            self.edit_after_renewal = None
        return found

    def look(self) -> Lease:
        self._check_available()
        return super().look()

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        self._check_available()
        super().note(lease, states)

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        self._check_available()
        return super().fire(lease, firings, sender)

    def pending(self) -> list[Slot]:
        return list(self.pending_slots.values())

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        for each in slots:
            self.pending_slots.pop(each, None)

    def sweep(self, before: float) -> int:
        self.swept.append(before)
        return super().sweep(before)

    def _check_available(self) -> None:
        if self.away:
            raise BackendError("away")


class LostAnswerStore(FakeScheduleStore):
    """lost_answers: how many of the next answers of fire() are lost."""

    lost_answers = 0

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        free = super().fire(lease, firings, sender)
        if self.lost_answers:
            self.lost_answers -= 1
            raise BackendError("no answer")
        return free


class SeparateStore(FakeScheduleStore):
    """A store that is separate from the broker: a slot is pending until its message is sent."""

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        free = super().fire(lease, firings, KeepingStore().sender)
        for each in free:
            self.pending_slots[each.name, each.due] = Slot(each.name, each.due, 0.0, each.task_id, PENDING)
        if free:
            sender.push([envelope for each in free for envelope in each.envelopes])
            self.sent(lease, [(each.name, each.due) for each in free])
        return free


class FailingSchedule(Schedule):
    """A custom schedule that fails."""

    def next(self, after: datetime) -> datetime | None:
        raise RuntimeError("no time")

    def previous(self, before: datetime) -> datetime | None:
        raise RuntimeError("no time")

    def words(self) -> str:
        return "never"


class SlowStore(FakeScheduleStore):
    """Takes a quarter of a second for each 500 states it notes; *others* take steps meanwhile."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.others: list[Beat] = []

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        for _ in range(0, len(states), 500):
            self.clock.advance(0.25)
            for each in self.others:
                each.step(self.clock.monotonic())
        super().note(lease, states)


class RecordingStore(FakeScheduleStore):
    """Records the order of calls of note(), fire() and prepare()."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.recorded: list[str] = []

    def note(self, lease: Lease, states: Mapping[str, EntryState]) -> None:
        self.recorded.append("note")
        super().note(lease, states)

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        self.recorded.append("fire")
        return super().fire(lease, firings, sender)

    def prepare(self, sender: Sender) -> None:
        self.recorded.append("prepare")


class LostCommitStore(SeparateStore):
    """A store whose answer to a commit was lost: the retry finds every slot taken, and does not send."""

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        super().fire(lease, firings, KeepingStore().sender)
        for each in firings:
            self.pending_slots[each.name, each.due] = Slot(each.name, each.due, 0.0, each.task_id, PENDING)
        return []


class Bench:
    """A beat of an app with *entries* in its settings, and a fake clock."""

    def __init__(
        self,
        entries: dict[str, Any],
        store_type: type[FakeScheduleStore] = FakeScheduleStore,
        **settings: Any,
    ) -> None:
        self.app, self.broker, self.clock = make_app(beat_schedule=entries, **settings)
        self.store = store_type(self.clock)
        self.schedules = Schedules(self.app, self.store)
        self.crashes: list[BaseException] = []
        self.beat = self.another()

    def another(self) -> Beat:
        """Return the beat of another process, with the same store."""
        return Beat(self.app, lambda name, error: self.crashes.append(error), self.store)

    def step(self) -> float:
        return self.beat.step(self.clock.monotonic())

    def run(self, seconds: float, *beats: Beat) -> None:
        """Let time pass. Each of *beats* takes a step when one of them asks for it, as its thread would."""
        end = self.clock.now() + seconds
        while (remaining := end - self.clock.now()) > 0:
            rests = [each.step(self.clock.monotonic()) for each in beats or (self.beat,)]
            self.clock.advance(min(max(min(rests), 0.001), remaining))
        for each in beats or (self.beat,):
            each.step(self.clock.monotonic())

    def at(self, instant: float) -> None:
        """Let time pass until *instant*, with few turns while nothing is due."""
        if instant - self.clock.now() > 4.0:
            self.run(2.0)
            self.beat.longest_rest = self.beat.leadership.renew_seconds = 3600.0
            self.run(instant - 2.0 - self.clock.now())
            del self.beat.longest_rest, self.beat.leadership.renew_seconds
        self.run(instant - self.clock.now())

    @property
    def calls(self) -> list[tuple[str, float]]:
        """The entry and due time of each message sent so far."""
        return [
            (
                sent.headers[NAME_HEADER],
                datetime.fromisoformat(sent.headers[DUE_HEADER].replace("Z", "+00:00")).timestamp(),
            )
            for sent in self.broker.sent
        ]


def hourly(**fields: Any) -> dict[str, Any]:
    return {"task": "proj.report", "schedule": "0 * * * *", **fields}


# -- each due time once --


def test_entry_is_called_at_its_due_times() -> None:
    bench = Bench({"a": hourly(args=[1], kwargs={"b": 2}, options={"queue": "special", "headers": {"h": 1}})})
    bench.at(FIRST - 1)
    assert bench.calls == []
    bench.at(FIRST + 2 * HOUR + 1)
    assert bench.calls == [("a", FIRST), ("a", FIRST + HOUR), ("a", FIRST + 2 * HOUR)]
    first = bench.broker.sent[0]
    assert (first.headers["task"], first.headers["h"], first.envelope.queue) == ("proj.report", 1, "special")
    assert (first.body.args, first.body.kwargs) == ((1,), {"b": 2})
    assert first.headers["id"] == id_of("proj", "a", FIRST)
    row = bench.store.row("a")
    assert row is not None
    assert row.state is not None
    assert row.state[2:] == (
        FIRST + 2 * HOUR,
        FIRST + 2 * HOUR,
        id_of("proj", "a", FIRST + 2 * HOUR),
        3,
        None,
    )
    assert len(bench.store.slots("a")) == bench.beat.fired == 3


def test_step_returns_the_time_until_the_next_due_call() -> None:
    bench = Bench({"a": hourly()})
    assert 0 < bench.step() <= 0.5
    bench.clock.advance(FIRST - bench.clock.now() - 0.1)
    assert bench.step() == pytest.approx(0.1)


def test_late_call_expires_relative_to_its_due_time() -> None:
    bench = Bench({"a": hourly(expires=600)})
    bench.step()
    bench.clock.advance(FIRST + 300 - bench.clock.now())
    bench.step()
    (sent,) = bench.broker.sent
    assert sent.headers["expires"].startswith("2023-11-14T23:10:00")


def test_each_of_thousands_of_entries_is_called_once() -> None:
    bench = Bench({f"e{number}": hourly() for number in range(2500)})
    bench.step()
    bench.clock.advance(FIRST - bench.clock.now())
    for _ in range(10):
        bench.step()
    assert set(Counter(bench.calls).values()) == {1}
    assert len(bench.calls) == 2500


def test_scheduled_call_runs_in_a_worker() -> None:
    clock = FakeClock()
    app = QWorker(
        "proj", broker=MemoryStore(clock), backend="cache+memory://", clock=clock, set_as_current=False
    )
    ran: list[tuple[str, int]] = []

    @app.task(name="proj.report", bind=True, schedule="0 * * * *")
    def report(self: Any) -> None:
        ran.append((self.request.id, 1))

    beat = Beat(app, lambda name, error: None, MemoryScheduleStore(clock))
    with StepWorker(app) as worker:
        beat.step(clock.monotonic())
        clock.advance(FIRST - clock.now())
        beat.step(clock.monotonic())
        worker.run()
    assert ran == [(id_of("proj", "proj.report", FIRST), 1)]


# -- several processes --


def test_only_one_of_several_processes_makes_calls() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1}})
    others = [bench.another() for _ in range(3)]
    bench.run(20, bench.beat, *others)
    assert len(bench.calls) == len(set(bench.calls)) >= 19
    assert [each.fired > 0 for each in (bench.beat, *others)] == [True, False, False, False]


def test_follower_takes_over_from_a_dead_leader() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1, "catch_up": 100}})
    other = bench.another()
    bench.run(5, bench.beat, other)
    bench.run(5, other)
    assert other.leadership.lease is not None
    dues = [due for _, due in bench.calls]
    assert dues == [START + number for number in range(1, 11)]


def test_frozen_leader_repeats_no_call() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1, "catch_up": 100}})
    other = bench.another()
    bench.run(3, bench.beat, other)
    bench.run(5, other)
    for _ in range(20):
        bench.run(0.5, bench.beat, other)
    dues = [due for _, due in bench.calls]
    assert dues == [START + number for number in range(1, 19)]
    assert bench.beat.leadership.lease is None


def test_lease_is_renewed_while_many_entries_are_loaded() -> None:
    """Otherwise two starting processes take the lease from each other again and again."""
    bench = Bench({f"e{number}": hourly() for number in range(6000)}, SlowStore)
    assert isinstance(bench.store, SlowStore)
    other = bench.another()
    bench.store.others.append(other)
    began = bench.clock.now()
    bench.step()
    assert bench.clock.now() - began > LEASE_SECONDS
    assert bench.beat.leadership.lease is not None
    assert other.leadership.lease is None


def test_lease_is_renewed_while_many_edits_are_loaded() -> None:
    bench = Bench({}, SlowStore)
    bench.step()
    assert isinstance(bench.store, SlowStore)
    other = bench.another()
    bench.store.others.append(other)
    edit = to_json(Edit({"task": "t", "schedule": {"crontab": "0 * * * *"}}, added=True).as_data())
    for number in range(6000):
        assert bench.store.edit(f"e{number}", edit, 0)
    bench.clock.advance(0.5)
    began = bench.clock.now()
    bench.step()
    assert bench.clock.now() - began > LEASE_SECONDS
    assert bench.beat.leadership.lease is not None
    assert other.leadership.lease is None
    bench.at(FIRST + 3)
    assert Counter(bench.calls) == Counter((f"e{number}", FIRST) for number in range(6000))


def test_due_calls_are_made_before_all_entries_are_loaded() -> None:
    """Reading a hundred thousand entries takes many seconds."""
    bench = Bench({f"e{number}": hourly() for number in range(5000)}, RecordingStore)
    bench.at(FIRST - 1)
    bench.beat.closed()
    bench.clock.advance(2.0)
    assert isinstance(bench.store, RecordingStore)
    bench.store.recorded.clear()
    bench.another().step(bench.clock.monotonic())
    assert bench.store.recorded[:2] == ["note", "fire"]
    assert Counter(bench.calls) == Counter((f"e{number}", FIRST) for number in range(5000))


def test_leader_prepares_before_the_first_due_time() -> None:
    bench = Bench({"a": hourly()}, RecordingStore)
    assert isinstance(bench.store, RecordingStore)
    bench.step()
    assert bench.store.recorded == ["note", "prepare"]
    bench.at(FIRST)
    assert [each for each in bench.store.recorded if each != "note"] == ["prepare", "fire"], (
        "it prepares only once"
    )


def test_leader_fenced_during_a_step_becomes_a_follower(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench({"a": hourly()})
    bench.step()
    bench.clock.advance(FIRST - bench.clock.now())
    bench.step()
    bench.clock.advance(HOUR - 0.1)
    bench.step()
    theirs = bench.store.take("they", bench.store.look())
    bench.clock.advance(0.15)
    assert bench.step() > 0
    assert bench.beat.leadership.lease is None
    assert len(bench.calls) == 1
    assert "beat-follows" in logged(caplog)
    bench.store.resign(theirs)
    bench.step()
    assert bench.calls == [("a", FIRST), ("a", FIRST + HOUR)], (
        "the missed call is caught up once the other leader resigns"
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 3)), max_size=60))
def test_each_due_time_is_called_once_for_any_order_of_steps(turns: list[tuple[int, float]]) -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1, "catch_up": 1000}})
    beats = [bench.beat, bench.another(), bench.another()]
    beats[0].step(bench.clock.monotonic())
    for number, seconds in turns:
        bench.clock.advance(seconds)
        beats[number].step(bench.clock.monotonic())
    bench.run(2 * LEASE_SECONDS + 2, *beats)
    dues = [due for _, due in bench.calls]
    assert len(dues) == len(set(dues))
    past = int(bench.clock.now() - START)
    assert sorted(dues) == [START + number for number in range(1, past + 1)]


# -- invalid entries --


class FailingLater(Schedule):
    """Fails from the first full hour on."""

    def next(self, after: datetime) -> datetime | None:
        return datetime.fromtimestamp(FIRST, UTC)

    def previous(self, before: datetime) -> datetime | None:
        raise RuntimeError("no")


def test_invalid_entries_do_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(
        {
            "no-task": {"schedule": 1},
            "own": hourly(schedule=FailingLater()),
            "end": hourly(end="9999-12-31T23:59:59-23:00"),
            "at": hourly(schedule={"at": "9999-12-31T23:59:59-23:00"}),
            "good": hourly(),
        }
    )
    bench.at(FIRST + HOUR)
    assert bench.calls == [("good", FIRST), ("good", FIRST + HOUR)]
    assert logged(caplog).count("entry-wrong") == 3  # a due time beyond the calendar never comes
    assert bench.crashes == []


def test_invalid_edit_made_during_a_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"good": hourly()})
    bench.step()
    bench.store.edit("one", b"{", 0)
    bench.store.edit_after_renewal = ("two", b"{", 0)
    bench.run(3)
    assert logged(caplog).count("entry-wrong") == 2


def test_damaged_rows_do_not_affect_other_entries() -> None:
    bench = Bench({"good": hourly(), "spoilt": hourly()})
    bench.store.edit("spoilt", b"{", 0)
    bench.store.edit("spoilt by hand", b"\xff", 0)
    bench.at(FIRST)
    assert bench.calls == [("good", FIRST)]
    bench.schedules.reset("spoilt")
    bench.at(FIRST + HOUR)
    assert Counter(bench.calls) == Counter(
        [("good", FIRST), ("good", FIRST + HOUR), ("spoilt", FIRST + HOUR)]
    )


def test_failing_call_is_logged_once_and_retried_when_due(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"bad": hourly(args=[object()]), "good": hourly()})
    bench.at(FIRST + 3 * HOUR)
    assert {name for name, _ in bench.calls} == {"good"}
    assert len(bench.calls) == 4
    assert logged(caplog).count("entry-failed") == 1
    state = bench.schedules["bad"].state
    assert state is not None
    assert state.error
    assert (state.runs, state.last_due) == (0, FIRST + 3 * HOUR)
    bench.schedules.set("bad", args=[1])
    bench.at(FIRST + 4 * HOUR)
    assert ("bad", FIRST + 4 * HOUR) in bench.calls
    state = bench.schedules["bad"].state
    assert state is not None
    assert (state.error, state.runs) == (None, 1)


# -- an unavailable store or broker --


@pytest.mark.parametrize("store_type", [FakeScheduleStore, SeparateStore])
def test_due_call_is_sent_when_the_broker_returns(
    store_type: type[FakeScheduleStore], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench({"a": hourly()}, store_type)
    caplog.set_level("INFO")
    bench.at(FIRST - 1)
    bench.broker.failures = 10
    bench.at(FIRST + 10)
    assert bench.broker.failures < 10
    bench.broker.failures = 0
    bench.at(FIRST + 12)
    assert bench.calls == [("a", FIRST)]
    assert bench.store.pending() == []
    assert bench.broker.sent[0].headers["id"] == id_of("proj", "a", FIRST)
    events = logged(caplog)
    assert (events.count("beat-waits"), events.count("beat-goes-on")) == (1, 1)


def test_next_leader_sends_pending_calls() -> None:
    bench = Bench({"a": hourly()}, SeparateStore)
    other = bench.another()
    bench.step()
    bench.broker.failures = 1
    bench.clock.advance(FIRST - bench.clock.now())
    bench.step()
    assert bench.calls == []
    bench.run(5, other)
    assert bench.calls == [("a", FIRST)]
    assert bench.store.pending() == []


@pytest.mark.parametrize("others", [0, 30])
def test_call_waiting_for_the_broker_counts_towards_max_runs(others: int) -> None:
    """The entry is due again before the broker is back; the pending call must not be forgotten."""
    other = {f"other {number}": {"task": "t", "schedule": 2} for number in range(others)}
    bench = Bench({"a": {"task": "t", "schedule": 2, "max_runs": 2}, **other}, SeparateStore)
    bench.run(1.9)
    bench.broker.failures = 100
    bench.run(2.2)
    bench.broker.failures = 0
    bench.run(20)
    state = bench.schedules["a"].state
    assert state is not None
    assert [name for name, _ in bench.calls].count("a") == state.runs == 2


def test_slot_taken_by_an_unanswered_commit_is_sent_at_once() -> None:
    bench = Bench({"a": hourly()}, store_type=LostCommitStore)
    bench.at(FIRST + 1)
    assert bench.calls == [("a", FIRST)]


def test_missed_calls_are_caught_up_after_a_store_outage(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"a": hourly(), "b": hourly(catch_up=10)})
    caplog.set_level("INFO")
    bench.at(FIRST + 1)
    bench.store.away = True
    for _ in range(100):
        rest = bench.step()
        assert rest > 0
        bench.clock.advance(rest)
    bench.clock.advance(2 * HOUR)
    bench.store.away = False
    bench.run(3)
    found = Counter(bench.calls)
    assert found == Counter(
        [("a", FIRST), ("a", FIRST + 2 * HOUR), *(("b", FIRST + number * HOUR) for number in range(3))]
    )
    events = logged(caplog)
    assert (events.count("beat-waits"), events.count("beat-goes-on")) == (1, 1)


def test_calls_continue_after_the_store_was_emptied() -> None:
    bench = Bench({"a": hourly()})
    bench.at(FIRST + 1)
    fresh = MemoryScheduleStore(bench.clock)
    bench.store._lease, bench.store._rows, bench.store._slots = fresh._lease, fresh._rows, fresh._slots
    bench.at(FIRST + HOUR)
    assert bench.calls == [("a", FIRST), ("a", FIRST + HOUR)]


def test_old_slots_are_swept() -> None:
    bench = Bench({"a": hourly()}, beat_history_expires=HOUR)
    bench.at(FIRST + 3 * HOUR + 100)
    assert {slot.due for slot in bench.store.slots("a")} == {FIRST + 3 * HOUR}
    assert bench.store.swept


# -- edits --


def test_edits_take_effect_within_a_second() -> None:
    bench = Bench({"a": hourly(), "b": hourly()})
    bench.at(FIRST - 1)
    bench.schedules.pause("a")
    bench.schedules.set("b", args=[7])
    bench.schedules.add("c", "proj.other", {"crontab": "0 * * * *"})
    bench.at(FIRST)
    assert sorted(bench.calls) == [("b", FIRST), ("c", FIRST)]
    assert [sent.body.args for sent in bench.broker.sent if sent.headers[NAME_HEADER] == "b"] == [(7,)]
    bench.schedules.remove("c")
    bench.schedules.remove("b")
    bench.at(FIRST + HOUR)
    assert len(bench.calls) == 2
    bench.schedules.reset("b")
    bench.schedules.resume("a")
    bench.run(2)
    assert len(bench.calls) == 2, "due times during a pause are not caught up"
    bench.at(FIRST + 2 * HOUR)
    assert ("a", FIRST + 2 * HOUR) in bench.calls
    assert ("b", FIRST + 2 * HOUR) in bench.calls


def test_readded_entry_starts_with_fresh_state() -> None:
    bench = Bench({})
    bench.step()
    bench.schedules.add("c", "t", 10, max_runs=1)
    bench.run(15)
    assert len(bench.calls) == 1
    bench.schedules.remove("c")
    bench.run(30)
    bench.schedules.add("c", "t", 10, max_runs=1)
    bench.run(5)
    assert len(bench.calls) == 1
    bench.run(10)
    assert len(bench.calls) == 2


# -- problems --


def test_leader_reports_invalid_entries() -> None:
    bench = Bench({"a": hourly(), "b": {"task": "proj.report", "schedule": "never"}})
    follower = bench.another()
    assert [text.partition(" is")[0] for text in follower.problems()] == ["the entry b"]
    bench.step()
    follower.step(bench.clock.monotonic())
    (problem,) = bench.beat.problems()
    assert "the entry b is not called" in problem
    bench.schedules.add("c", "proj.report", "@hourly", options={"routing": 1})
    bench.schedules.remove("b")
    bench.at(FIRST)
    (problem,) = bench.beat.problems()
    assert "the entry c is not called" in problem
    assert "routing" in problem
    bench.schedules.remove("c")
    bench.run(1.0)
    assert bench.beat.problems() == ()
    assert len(follower.problems()) == 1, "only the leader reads edits"


def test_failing_schedule_is_reported_until_it_is_replaced() -> None:
    bench = Bench({"a": {"task": "proj.report", "schedule": FailingSchedule()}})
    bench.step()
    bench.step()
    assert ["no time" in text for text in bench.beat.problems()] == [True]
    bench.schedules.set("a", schedule="@hourly")
    bench.run(1.0)
    assert bench.beat.problems() == ()


def test_number_of_reported_problems_is_limited() -> None:
    bench = Bench({f"e{number:03}": {"task": "t", "schedule": "never"} for number in range(500)})
    bench.step()
    assert len(bench.beat.problems()) == 20
    assert max(map(len, bench.beat.problems())) < 600


# -- overlap --


@pytest.mark.parametrize(("overlap", "called"), [("allow", 2), ("skip", 1), ("replace", 2)])
def test_overlap_while_the_previous_call_is_unfinished(overlap: str, called: int) -> None:
    bench = Bench({"a": hourly(overlap=overlap)})
    bench.at(FIRST + HOUR)
    assert len(bench.calls) == called
    revoked = [ids for ids, _, _ in bench.broker.revoked]
    assert revoked == ([[id_of("proj", "a", FIRST)]] if overlap == "replace" else [])
    state = bench.schedules["a"].state
    assert state is not None
    assert state.last_due == FIRST + HOUR


@pytest.mark.parametrize(("overlap", "called"), [("allow", 3), ("skip", 1), ("replace", 1)])
def test_without_overlap_one_call_catches_up_all_missed_calls(overlap: str, called: int) -> None:
    bench = Bench({"a": hourly(overlap=overlap, catch_up=5)})
    bench.at(FIRST - 1)
    bench.clock.advance(2 * HOUR + 2)
    bench.step()
    bench.step()
    assert [due for _, due in bench.calls] == [FIRST + n * HOUR for n in range(3)][-called:]


def test_replaced_call_is_revoked_after_its_replacement_is_sent() -> None:
    """Otherwise nothing would run while the store is unavailable."""
    bench = Bench({"a": hourly(overlap="replace")})
    bench.at(FIRST)
    bench.store.away = True
    bench.at(FIRST + HOUR)
    assert (len(bench.calls), bench.broker.revoked) == (1, [])
    bench.store.away = False
    bench.run(LEASE_SECONDS)
    assert len(bench.calls) == 2
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


def test_replaced_call_is_revoked_when_the_answer_was_lost() -> None:
    bench = Bench({"a": hourly(overlap="replace")}, LostAnswerStore)
    bench.at(FIRST)
    assert isinstance(bench.store, LostAnswerStore)
    bench.store.lost_answers = 1
    bench.at(FIRST + HOUR + 1)
    assert len(bench.calls) == 2
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE", "REVOKED", "STARTED", "RETRY"])
def test_call_is_unfinished_until_it_has_a_result(status: str) -> None:
    bench = Bench({"a": hourly(overlap="skip")})
    bench.at(FIRST)
    backend, task_id = bench.app.backend, id_of("proj", "a", FIRST)
    assert backend.store(task_id, backend.meta(task_id, status, None))
    bench.at(FIRST + HOUR)
    assert len(bench.calls) == (1 if status in ("STARTED", "RETRY") else 2)


@pytest.mark.parametrize(("expires", "called"), [(0.5 * HOUR, 4), (2.5 * HOUR, 2), (None, 1)])
def test_call_without_a_result_counts_as_finished_after_result_expires(
    expires: float | None, called: int
) -> None:
    bench = Bench({"a": hourly(overlap="skip")}, result_expires=expires)
    bench.at(FIRST + 3 * HOUR + 1)
    assert len(bench.calls) == called


@pytest.mark.parametrize("before", ["allow", "replace"])
def test_call_with_ignored_result_does_not_block_later_ones(before: str) -> None:
    """If the entry is set to skip, or its task to store results, only after that call."""
    bench = Bench({"a": hourly(overlap=before)}, task_ignore_result=True)
    bench.at(FIRST)
    bench.app.conf.task_ignore_result = False
    bench.schedules.set("a", overlap="skip")
    bench.at(FIRST + HOUR + 1)
    assert len(bench.calls) == 2


@pytest.mark.parametrize("before", ["allow", "replace"])
def test_call_with_ignored_result_is_revoked_by_its_replacement(before: str) -> None:
    bench = Bench({"a": hourly(overlap=before)}, task_ignore_result=True)
    bench.at(FIRST)
    bench.schedules.set("a", overlap="replace")
    bench.at(FIRST + HOUR + 1)
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


def test_id_of_a_call_with_ignored_result_is_shown() -> None:
    """Even after the slot of its due time was swept."""
    bench = Bench({"a": hourly()}, task_ignore_result=True)
    bench.at(FIRST)
    assert bench.store.sweep(FIRST + 1) == 1
    assert whole(bench.app, bench.schedules["a"])["task_id"] == id_of("proj", "a", FIRST)


def test_answers_of_a_replaced_result_store_are_not_reused() -> None:
    app, _, _ = make_app()
    other, _, _ = make_app()
    asked = Question(app.backend, ["a", "b"])
    assert [asked.covers(app.backend, ids) for ids in (["a"], ["a", "b"], ["a", "c"])] == [True, True, False]
    assert not asked.covers(other.backend, ["a"])


# -- the thread --


def test_beat_sends_init_signals_and_resigns_on_close() -> None:
    bench = Bench({"a": hourly()})
    recorded: list[str] = []

    def begins(sender: Any, **_: Any) -> None:
        recorded.append("init")

    def embedded(sender: Any, **_: Any) -> None:
        recorded.append("embedded")

    signals.beat_init.connect(begins)
    signals.beat_embedded_init.connect(embedded)
    try:
        bench.beat.opened()
        Beat(bench.app, lambda name, error: None, bench.store, embedded=True).opened()
    finally:
        signals.beat_init.disconnect(begins)
        signals.beat_embedded_init.disconnect(embedded)
    assert recorded == ["init", "init", "embedded"]
    bench.step()
    assert bench.store.look().holder
    bench.beat.quiet()
    bench.beat.stop()
    bench.beat.closed()
    bench.beat.closed()
    assert bench.store.look().holder == ""


def test_beat_closes_while_the_store_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    class UnavailableStore(FakeScheduleStore):
        def resign(self, lease: Lease) -> None:
            raise BackendError("away")

    bench = Bench({}, UnavailableStore)
    bench.step()
    bench.beat.closed()
    assert bench.beat.leadership.lease is None
