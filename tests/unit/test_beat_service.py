"""The service that looks after schedules, turn by turn."""

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
from qworker.beat.service import Beat
from qworker.beat.store import LEASE_SECONDS, PENDING, Firing, Lease, Slot, State
from qworker.beat.store_memory import MemoryScheduleStore
from qworker.beat.written import to_json
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


class Kept(MemoryScheduleStore):
    """away: while True, calls raise BackendError. left: its pending slots. swept: what was asked for."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, shared=True)
        self.away = False
        self.left: dict[tuple[str, float], Slot] = {}
        self.swept: list[float] = []
        self.edit_after_renewal: tuple[str, bytes, int] | None = None

    def renew(self, lease: Lease) -> Lease:
        self._answer()
        found = super().renew(lease)
        if self.edit_after_renewal is not None:
            super().edit(*self.edit_after_renewal)
            self.edit_after_renewal = None
        return found

    def look(self) -> Lease:
        self._answer()
        return super().look()

    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        self._answer()
        super().note(lease, states)

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        self._answer()
        return super().fire(lease, firings, sender)

    def pending(self) -> list[Slot]:
        return list(self.left.values())

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        for each in slots:
            self.left.pop(each, None)

    def sweep(self, before: float) -> int:
        self.swept.append(before)
        return super().sweep(before)

    def _answer(self) -> None:
        if self.away:
            raise BackendError("away")


class Deaf(Kept):
    """deaf: so many answers of fire() are lost from now on."""

    deaf = 0

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        free = super().fire(lease, firings, sender)
        if self.deaf:
            self.deaf -= 1
            raise BackendError("no answer")
        return free


class Apart(Kept):
    """As a store beside its broker: a slot is taken first, and pending until the message is sent."""

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        free = super().fire(lease, firings, KeepingStore().sender)
        for each in free:
            self.left[each.name, each.due] = Slot(each.name, each.due, 0.0, each.task_id, PENDING)
        if free:
            sender.push([envelope for each in free for envelope in each.envelopes])
            self.sent(lease, [(each.name, each.due) for each in free])
        return free


class Failing(Schedule):
    """One of somebody's own, with a fault."""

    def next(self, after: datetime) -> datetime | None:
        raise RuntimeError("no time")

    def previous(self, before: datetime) -> datetime | None:
        raise RuntimeError("no time")

    def words(self) -> str:
        return "never"


class Slow(Kept):
    """Takes a quarter of a second for each 500 states that it notes. others: have their turns meanwhile."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.others: list[Beat] = []

    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        for _ in range(0, len(states), 500):
            self.clock.advance(0.25)
            for each in self.others:
                each.step(self.clock.monotonic())
        super().note(lease, states)


class Order(Kept):
    """Keeps in which order it is told of entries, and of calls."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.told: list[str] = []

    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        self.told.append("note")
        super().note(lease, states)

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        self.told.append("fire")
        return super().fire(lease, firings, sender)

    def prepare(self, sender: Sender) -> None:
        self.told.append("prepare")


class Repeating(Apart):
    """As a store whose answer to a commit was lost: tried again, it finds every slot taken, and does not
    send."""

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        super().fire(lease, firings, KeepingStore().sender)
        for each in firings:
            self.left[each.name, each.due] = Slot(each.name, each.due, 0.0, each.task_id, PENDING)
        return []


class Bench:
    """A beat of an app with *entries* in its settings, on a clock that stands still."""

    def __init__(self, entries: dict[str, Any], kept: type[Kept] = Kept, **settings: Any) -> None:
        self.app, self.broker, self.clock = make_app(beat_schedule=entries, **settings)
        self.store = kept(self.clock)
        self.schedules = Schedules(self.app, self.store)
        self.crashes: list[BaseException] = []
        self.beat = self.another()

    def another(self) -> Beat:
        """Another process that looks after the same."""
        return Beat(self.app, lambda name, error: self.crashes.append(error), self.store)

    def turn(self) -> float:
        return self.beat.step(self.clock.monotonic())

    def run(self, seconds: float, *beats: Beat) -> None:
        """Let time pass; each of *beats* has its turn at least every 0.25 s."""
        end = self.clock.now() + seconds
        while (left := end - self.clock.now()) > 0:
            rests = [each.step(self.clock.monotonic()) for each in beats or (self.beat,)]
            self.clock.advance(min(max(min(rests), 0.001), 0.25, left))
        for each in beats or (self.beat,):
            each.step(self.clock.monotonic())

    def at(self, instant: float) -> None:
        self.run(instant - self.clock.now())

    @property
    def calls(self) -> list[tuple[str, float]]:
        """The entry and due time of each message so far."""
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


def test_an_entry_is_called_at_its_times() -> None:
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


def test_it_rests_until_something_is_to_be_done() -> None:
    bench = Bench({"a": hourly()})
    assert 0 < bench.turn() <= 0.5
    bench.clock.advance(FIRST - bench.clock.now() - 0.1)
    assert bench.turn() == pytest.approx(0.1)


def test_a_call_that_is_late_expires_by_its_due_time() -> None:
    bench = Bench({"a": hourly(expires=600)})
    bench.turn()
    bench.clock.advance(FIRST + 300 - bench.clock.now())
    bench.turn()
    (sent,) = bench.broker.sent
    assert sent.headers["expires"].startswith("2023-11-14T23:10:00")


def test_thousands_of_entries_are_each_called_once() -> None:
    bench = Bench({f"e{number}": hourly() for number in range(2500)})
    bench.turn()
    bench.clock.advance(FIRST - bench.clock.now())
    for _ in range(10):
        bench.turn()
    assert set(Counter(bench.calls).values()) == {1}
    assert len(bench.calls) == 2500


def test_what_was_called_runs_in_a_worker() -> None:
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


# -- one of many --


def test_of_many_processes_one_calls() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1}})
    others = [bench.another() for _ in range(3)]
    bench.run(20, bench.beat, *others)
    assert len(bench.calls) == len(set(bench.calls)) >= 19
    assert [each.fired > 0 for each in (bench.beat, *others)] == [True, False, False, False]


def test_another_goes_on_where_the_leader_has_died() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1, "catch_up": 100}})
    other = bench.another()
    bench.run(5, bench.beat, other)
    bench.run(5, other)
    assert other.leadership.lease is not None
    dues = [due for _, due in bench.calls]
    assert dues == [START + number for number in range(1, 11)]


def test_a_frozen_leader_calls_nothing_twice() -> None:
    bench = Bench({"a": {"task": "t", "schedule": 1, "catch_up": 100}})
    other = bench.another()
    bench.run(3, bench.beat, other)
    bench.run(5, other)
    for _ in range(20):
        bench.run(0.5, bench.beat, other)
    dues = [due for _, due in bench.calls]
    assert dues == [START + number for number in range(1, 19)]
    assert bench.beat.leadership.lease is None


def test_it_leads_on_while_it_takes_in_more_entries_than_a_lease_lasts() -> None:
    """Otherwise two that begin take the lead from each other again and again, and nothing is called."""
    bench = Bench({f"e{number}": hourly() for number in range(6000)}, Slow)
    assert isinstance(bench.store, Slow)
    other = bench.another()
    bench.store.others.append(other)
    began = bench.clock.now()
    bench.turn()
    assert bench.clock.now() - began > LEASE_SECONDS
    assert bench.beat.leadership.lease is not None
    assert other.leadership.lease is None


def test_it_leads_on_while_it_takes_in_more_edits_than_a_lease_lasts() -> None:
    bench = Bench({}, Slow)
    bench.turn()
    assert isinstance(bench.store, Slow)
    other = bench.another()
    bench.store.others.append(other)
    edit = to_json(Edit({"task": "t", "schedule": {"crontab": "0 * * * *"}}, added=True).as_data())
    for number in range(6000):
        assert bench.store.edit(f"e{number}", edit, 0)
    bench.clock.advance(0.5)
    began = bench.clock.now()
    bench.turn()
    assert bench.clock.now() - began > LEASE_SECONDS
    assert bench.beat.leadership.lease is not None
    assert other.leadership.lease is None
    bench.at(FIRST + 3)
    assert Counter(bench.calls) == Counter((f"e{number}", FIRST) for number in range(6000))


def test_what_is_due_does_not_wait_until_all_entries_are_known() -> None:
    """Of a hundred thousand the last is known after many seconds."""
    bench = Bench({f"e{number}": hourly() for number in range(5000)}, Order)
    bench.at(FIRST - 1)
    bench.beat.closed()
    bench.clock.advance(2.0)
    assert isinstance(bench.store, Order)
    bench.store.told.clear()
    bench.another().step(bench.clock.monotonic())
    assert bench.store.told[:2] == ["note", "fire"]
    assert Counter(bench.calls) == Counter((f"e{number}", FIRST) for number in range(5000))


def test_who_leads_is_ready_to_call_before_anything_is_due() -> None:
    bench = Bench({"a": hourly()}, Order)
    assert isinstance(bench.store, Order)
    bench.turn()
    assert bench.store.told == ["note", "prepare"]
    bench.at(FIRST)
    assert [each for each in bench.store.told if each != "note"] == ["prepare", "fire"], "once is enough"


def test_a_leader_that_is_fenced_in_the_midst_of_a_turn_goes_on_as_a_follower(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench({"a": hourly()})
    bench.turn()
    bench.clock.advance(FIRST - bench.clock.now())
    bench.turn()
    bench.clock.advance(HOUR - 0.1)
    bench.turn()
    theirs = bench.store.take("they", bench.store.look())
    bench.clock.advance(0.15)
    assert bench.turn() > 0
    assert bench.beat.leadership.lease is None
    assert len(bench.calls) == 1
    assert "beat-follows" in logged(caplog)
    bench.store.resign(theirs)
    bench.turn()
    assert bench.calls == [("a", FIRST), ("a", FIRST + HOUR)], (
        "once they have gone, what they left is made up"
    )


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 3)), max_size=60))
def test_each_due_time_is_called_once_however_turns_fall(turns: list[tuple[int, float]]) -> None:
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


# -- what is wrong --


class Own(Schedule):
    """It fails from the first full hour on."""

    def next(self, after: datetime) -> datetime | None:
        return datetime.fromtimestamp(FIRST, UTC)

    def previous(self, before: datetime) -> datetime | None:
        raise RuntimeError("no")


def test_a_wrong_entry_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(
        {
            "no-task": {"schedule": 1},
            "own": hourly(schedule=Own()),
            "end": hourly(end="9999-12-31T23:59:59-23:00"),
            "at": hourly(schedule={"at": "9999-12-31T23:59:59-23:00"}),
            "good": hourly(),
        }
    )
    bench.at(FIRST + HOUR)
    assert bench.calls == [("good", FIRST), ("good", FIRST + HOUR)]
    assert logged(caplog).count("entry-wrong") == 3  # what is due after the calendar never is
    assert bench.crashes == []


def test_what_is_edited_while_rows_are_read_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"good": hourly()})
    bench.turn()
    bench.store.edit("one", b"{", 0)
    bench.store.edit_after_renewal = ("two", b"{", 0)
    bench.run(3)
    assert logged(caplog).count("entry-wrong") == 2


def test_damaged_rows_stop_no_entry() -> None:
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


def test_a_call_that_cannot_be_made_is_told_of_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
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


# -- the store or the broker is away --


@pytest.mark.parametrize("kept", [Kept, Apart])
def test_a_broker_that_was_away_gets_what_was_due(kept: type[Kept], caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"a": hourly()}, kept)
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


def test_what_a_leader_has_left_pending_is_sent_by_the_next() -> None:
    bench = Bench({"a": hourly()}, Apart)
    other = bench.another()
    bench.turn()
    bench.broker.failures = 1
    bench.clock.advance(FIRST - bench.clock.now())
    bench.turn()
    assert bench.calls == []
    bench.run(5, other)
    assert bench.calls == [("a", FIRST)]
    assert bench.store.pending() == []


@pytest.mark.parametrize("others", [0, 30])
def test_a_call_that_waits_for_the_broker_counts(others: int) -> None:
    """It was due again before the broker was back, and the call before was forgotten."""
    other = {f"other {number}": {"task": "t", "schedule": 2} for number in range(others)}
    bench = Bench({"a": {"task": "t", "schedule": 2, "max_runs": 2}, **other}, Apart)
    bench.run(1.9)
    bench.broker.failures = 100
    bench.run(2.2)
    bench.broker.failures = 0
    bench.run(20)
    state = bench.schedules["a"].state
    assert state is not None
    assert [name for name, _ in bench.calls].count("a") == state.runs == 2


def test_what_was_taken_without_our_knowing_is_sent_at_once() -> None:
    bench = Bench({"a": hourly()}, kept=Repeating)
    bench.at(FIRST + 1)
    assert bench.calls == [("a", FIRST)]


def test_a_store_that_was_away_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench({"a": hourly(), "b": hourly(catch_up=10)})
    caplog.set_level("INFO")
    bench.at(FIRST + 1)
    bench.store.away = True
    for _ in range(100):
        rest = bench.turn()
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


def test_a_store_that_was_emptied_goes_on() -> None:
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


def test_edits_are_seen_within_a_second() -> None:
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
    assert len(bench.calls) == 2, "what was due while it was paused was not missed"
    bench.at(FIRST + 2 * HOUR)
    assert ("a", FIRST + 2 * HOUR) in bench.calls
    assert ("b", FIRST + 2 * HOUR) in bench.calls


def test_one_that_is_added_again_begins_anew() -> None:
    bench = Bench({})
    bench.turn()
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


def test_who_leads_tells_which_entries_are_wrong() -> None:
    bench = Bench({"a": hourly(), "b": {"task": "proj.report", "schedule": "never"}})
    follower = bench.another()
    assert [text.partition(" is")[0] for text in follower.problems()] == ["the entry b"]
    bench.turn()
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
    assert len(follower.problems()) == 1, "what was changed by hand is known to who leads"


def test_a_schedule_that_fails_is_a_problem_until_it_is_another() -> None:
    bench = Bench({"a": {"task": "proj.report", "schedule": Failing()}})
    bench.turn()
    bench.turn()
    assert ["no time" in text for text in bench.beat.problems()] == [True]
    bench.schedules.set("a", schedule="@hourly")
    bench.run(1.0)
    assert bench.beat.problems() == ()


def test_of_many_problems_the_first_are_told() -> None:
    bench = Bench({f"e{number:03}": {"task": "t", "schedule": "never"} for number in range(500)})
    bench.turn()
    assert len(bench.beat.problems()) == 20
    assert max(map(len, bench.beat.problems())) < 600


# -- overlap --


@pytest.mark.parametrize(("overlap", "called"), [("allow", 2), ("skip", 1), ("replace", 2)])
def test_while_the_call_before_lives(overlap: str, called: int) -> None:
    bench = Bench({"a": hourly(overlap=overlap)})
    bench.at(FIRST + HOUR)
    assert len(bench.calls) == called
    revoked = [ids for ids, _, _ in bench.broker.revoked]
    assert revoked == ([[id_of("proj", "a", FIRST)]] if overlap == "replace" else [])
    state = bench.schedules["a"].state
    assert state is not None
    assert state.last_due == FIRST + HOUR


@pytest.mark.parametrize(("overlap", "called"), [("allow", 3), ("skip", 1), ("replace", 1)])
def test_missed_calls_that_may_not_overlap_are_made_up_for_by_one(overlap: str, called: int) -> None:
    bench = Bench({"a": hourly(overlap=overlap, catch_up=5)})
    bench.at(FIRST - 1)
    bench.clock.advance(2 * HOUR + 2)
    bench.turn()
    bench.turn()
    assert [due for _, due in bench.calls] == [FIRST + n * HOUR for n in range(3)][-called:]


def test_what_is_replaced_is_revoked_when_its_replacement_is_sure() -> None:
    """Else nothing would run while the store is away."""
    bench = Bench({"a": hourly(overlap="replace")})
    bench.at(FIRST)
    bench.store.away = True
    bench.at(FIRST + HOUR)
    assert (len(bench.calls), bench.broker.revoked) == (1, [])
    bench.store.away = False
    bench.run(LEASE_SECONDS)
    assert len(bench.calls) == 2
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


def test_a_replacement_whose_answer_was_lost_revokes_what_it_replaces() -> None:
    bench = Bench({"a": hourly(overlap="replace")}, Deaf)
    bench.at(FIRST)
    assert isinstance(bench.store, Deaf)
    bench.store.deaf = 1
    bench.at(FIRST + HOUR + 1)
    assert len(bench.calls) == 2
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE", "REVOKED", "STARTED", "RETRY"])
def test_a_call_lives_until_it_has_a_result(status: str) -> None:
    bench = Bench({"a": hourly(overlap="skip")})
    bench.at(FIRST)
    backend, task_id = bench.app.backend, id_of("proj", "a", FIRST)
    assert backend.store(task_id, backend.meta(task_id, status, None))
    bench.at(FIRST + HOUR)
    assert len(bench.calls) == (1 if status in ("STARTED", "RETRY") else 2)


@pytest.mark.parametrize(("expires", "called"), [(0.5 * HOUR, 4), (2.5 * HOUR, 2), (None, 1)])
def test_a_call_without_a_result_lives_no_longer_than_results_are_kept(
    expires: float | None, called: int
) -> None:
    bench = Bench({"a": hourly(overlap="skip")}, result_expires=expires)
    bench.at(FIRST + 3 * HOUR + 1)
    assert len(bench.calls) == called


@pytest.mark.parametrize("before", ["allow", "replace"])
def test_a_call_that_leaves_no_result_keeps_no_later_one_waiting(before: str) -> None:
    """When the entry is told to skip, or its task to keep results, after that call."""
    bench = Bench({"a": hourly(overlap=before)}, task_ignore_result=True)
    bench.at(FIRST)
    bench.app.conf.task_ignore_result = False
    bench.schedules.set("a", overlap="skip")
    bench.at(FIRST + HOUR + 1)
    assert len(bench.calls) == 2


@pytest.mark.parametrize("before", ["allow", "replace"])
def test_a_call_that_leaves_no_result_is_replaced(before: str) -> None:
    bench = Bench({"a": hourly(overlap=before)}, task_ignore_result=True)
    bench.at(FIRST)
    bench.schedules.set("a", overlap="replace")
    bench.at(FIRST + HOUR + 1)
    assert [ids for ids, _, _ in bench.broker.revoked] == [[id_of("proj", "a", FIRST)]]


def test_the_id_of_a_call_that_leaves_no_result_is_shown() -> None:
    """Also when its due time is no longer remembered."""
    bench = Bench({"a": hourly()}, task_ignore_result=True)
    bench.at(FIRST)
    assert bench.store.sweep(FIRST + 1) == 1
    assert whole(bench.app, bench.schedules["a"])["task_id"] == id_of("proj", "a", FIRST)


def test_a_store_that_takes_the_place_of_another_is_asked_itself() -> None:
    app, _, _ = make_app()
    other, _, _ = make_app()
    asked = Question(app.backend, ["a", "b"])
    assert [asked.covers(app.backend, ids) for ids in (["a"], ["a", "b"], ["a", "c"])] == [True, True, False]
    assert not asked.covers(other.backend, ["a"])


# -- the thread --


def test_it_says_when_it_begins_and_leaves_the_lease_when_it_ends() -> None:
    bench = Bench({"a": hourly()})
    told: list[str] = []

    def begins(sender: Any, **_: Any) -> None:
        told.append("init")

    def embedded(sender: Any, **_: Any) -> None:
        told.append("embedded")

    signals.beat_init.connect(begins)
    signals.beat_embedded_init.connect(embedded)
    try:
        bench.beat.opened()
        Beat(bench.app, lambda name, error: None, bench.store, embedded=True).opened()
    finally:
        signals.beat_init.disconnect(begins)
        signals.beat_embedded_init.disconnect(embedded)
    assert told == ["init", "init", "embedded"]
    bench.turn()
    assert bench.store.look().holder
    bench.beat.quiet()
    bench.beat.stop()
    bench.beat.closed()
    bench.beat.closed()
    assert bench.store.look().holder == ""


def test_it_ends_also_where_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(Kept):
        def resign(self, lease: Lease) -> None:
            raise BackendError("away")

    bench = Bench({}, Gone)
    bench.turn()
    bench.beat.closed()
    assert bench.beat.leadership.lease is None
