"""The agenda: which due times are called, without a clock of its own."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat.agenda import LATE_SECONDS, Agenda, DueEntry, share
from qworker.beat.catalog import SETTINGS, Listed
from qworker.beat.entry import Entry
from qworker.beat.schedule import Schedule
from qworker.beat.store import EntryState
from qworker.testing.clock import START

HOUR, DAY = 3600.0, 86400.0
FIRST = datetime(2023, 11, 14, 23, tzinfo=UTC).timestamp()
"""The first full hour after START."""


def entry(name: str = "a", **fields: Any) -> Entry:
    return Entry(**{"name": name, "task": "t", "schedule": "0 * * * *", **fields})


def agenda_of(*entries: Entry, now: float = START) -> Agenda:
    agenda = Agenda()
    agenda.update([Listed(each.name, each, SETTINGS) for each in entries], now)
    return agenda


def take(agenda: Agenda, now: float, most: int = 1000) -> list[DueEntry]:
    """Return what is due, and plan it again as the service does."""
    found = agenda.due(now, most)
    for each in found:
        runs = each.state.runs + len(each.dues)
        agenda.plan(each.name, each.entry, each.state._replace(last_due=each.upto, runs=runs))
    return found


def dues(agenda: Agenda, now: float) -> list[float]:
    return [due for each in take(agenda, now) for due in each.dues]


# -- due times --


def test_entry_is_due_at_its_time_and_not_before() -> None:
    agenda = agenda_of(entry())
    assert agenda.next() == FIRST
    assert take(agenda, FIRST - 0.001) == []
    assert dues(agenda, FIRST) == [FIRST]
    assert dues(agenda, FIRST) == []
    assert agenda.next() == FIRST + HOUR


def test_empty_agenda_has_nothing_due() -> None:
    agenda = Agenda()
    assert (len(agenda), agenda.next(), agenda.due(START, 10)) == (0, None, [])
    assert agenda.update([Listed("a", None, SETTINGS, error="wrong")], START) == {}
    assert len(agenda) == 0


def test_schedule_without_a_timezone_uses_the_agendas_timezone() -> None:
    agenda = Agenda(datetime.strptime("+0030", "%z").tzinfo or UTC)
    agenda.update([Listed("a", entry(), SETTINGS)], START)
    assert agenda.next() == FIRST - 1800


def test_interval_counts_from_the_time_it_was_first_seen() -> None:
    agenda = agenda_of(entry(schedule=100), now=START + 7)
    assert agenda.next() == START + 107
    state = EntryState("x", START + 7, START + 107)
    fresh = agenda.update([Listed("a", entry(schedule=100), SETTINGS, state=state)], START + 150)
    assert fresh["a"].since == START + 150
    kept = fresh["a"]._replace(since=START + 7)
    assert agenda.update([Listed("a", entry(schedule=100), SETTINGS, state=kept)], START + 150) == {}
    assert agenda.next() == START + 207, "counted from the noted time"


def test_due_returns_the_earliest_entries_up_to_the_limit() -> None:
    agenda = agenda_of(*(entry(f"e{number}", schedule=100 - number) for number in range(10)))
    assert [each.name for each in take(agenda, START + 100, 3)] == ["e9", "e8", "e7"]
    assert len(take(agenda, START + 100, 100)) == 7


def test_missed_due_times_are_caught_up_in_batches() -> None:
    """A thousand entries that missed a thousand due times each are a million calls."""
    agenda = agenda_of(*(entry(f"e{number}", catch_up=1000) for number in range(50)))
    portions = []
    while found := agenda.due(FIRST + 30 * DAY, 1000):
        portions.append(sum(len(each.dues) for each in found))
    assert sum(portions) == 50 * 721
    assert max(portions) < 1000 + 721


def test_entry_is_not_due_again_until_planned_again() -> None:
    agenda = agenda_of(entry())
    (found,) = agenda.due(FIRST, 10)
    assert (agenda.due(FIRST + DAY, 10), agenda.next(), len(agenda)) == ([], None, 0)
    assert agenda.plan(found.name, found.entry, found.state) == FIRST
    assert agenda.due(FIRST, 10) == [found]


# -- missed due times --


@pytest.mark.parametrize(("catch_up", "last"), [("latest", 1), (1, 1), (3, 3), (24, 24), (1000, 24)])
def test_catch_up_calls_the_last_missed_due_times(catch_up: str | int, last: int) -> None:
    agenda = agenda_of(entry(catch_up=catch_up))
    (found,) = take(agenda, FIRST + 23 * HOUR + 30)
    assert list(found.dues) == [FIRST + number * HOUR for number in range(24 - last, 24)]
    assert found.upto == FIRST + 23 * HOUR
    assert agenda.next() == FIRST + 24 * HOUR


@pytest.mark.parametrize(
    ("late", "called"), [(0.0, True), (LATE_SECONDS, True), (LATE_SECONDS + 1, False), (5 * HOUR + 61, False)]
)
def test_catch_up_skip_does_not_call_late(late: float, called: bool) -> None:
    agenda = agenda_of(entry(catch_up="skip"))
    (found,) = take(agenda, FIRST + late)
    assert found.dues == ((FIRST,) if called else ())
    assert found.upto == FIRST + late // HOUR * HOUR
    assert agenda.next() == found.upto + HOUR


def test_catch_up_in_a_repeated_hour_calls_the_last_due_times() -> None:
    set_back = datetime(2023, 10, 29, 1, tzinfo=UTC).timestamp()
    agenda = Agenda(ZoneInfo("Europe/Berlin"))
    agenda.update([Listed("a", entry(schedule=60, catch_up=2), SETTINGS)], set_back)
    assert dues(agenda, set_back + 630) == [set_back + 540, set_back + 600]


def test_expired_due_times_are_not_called() -> None:
    agenda = agenda_of(entry(catch_up=10, expires=1.5 * HOUR))
    (found,) = take(agenda, FIRST + 5 * HOUR + 60)
    assert found.dues == (FIRST + 4 * HOUR, FIRST + 5 * HOUR)
    agenda = agenda_of(entry(expires=600))
    (found,) = take(agenda, FIRST + 600)
    assert (found.dues, found.upto) == ((), FIRST)


def test_entry_is_called_at_most_max_runs_times() -> None:
    agenda = agenda_of(entry(max_runs=3, catch_up=10))
    assert dues(agenda, FIRST) == [FIRST]
    assert dues(agenda, FIRST + 9 * HOUR) == [FIRST + 8 * HOUR, FIRST + 9 * HOUR]
    assert (agenda.next(), len(agenda)) == (None, 0)
    assert agenda_of(entry(max_runs=1)).plan("a", entry(max_runs=1), EntryState(runs=1)) is None


def test_due_times_outside_start_and_end_are_not_called() -> None:
    start = datetime.fromtimestamp(FIRST + HOUR, UTC)
    agenda = agenda_of(entry(start=start, end=start + timedelta(hours=2), catch_up=100))
    assert agenda.next() == FIRST + HOUR
    assert dues(agenda, FIRST + HOUR) == [FIRST + HOUR]
    assert dues(agenda, FIRST + DAY) == [FIRST + 2 * HOUR, FIRST + 3 * HOUR]
    assert agenda.next() is None


# -- changes --


def test_changed_schedule_resets_the_state() -> None:
    agenda = Agenda()
    fresh = agenda.update([Listed("a", entry(schedule="0 1 * * *"), SETTINGS)], START)
    assert fresh["a"].since == START
    old = fresh["a"]._replace(last_due=START, runs=7, error="wrong", task_id="t")
    now = START + 10 * DAY + HOUR
    fresh = agenda.update([Listed("a", entry(), SETTINGS, state=old)], now)
    assert fresh["a"]._replace(seen="") == EntryState("", now, START, None, "t", 7, None)
    assert dues(agenda, now) == []
    assert agenda.next() == FIRST + 10 * DAY + HOUR


def test_change_of_other_fields_keeps_the_state() -> None:
    agenda = Agenda()
    fresh = agenda.update([Listed("a", entry(), SETTINGS)], START)
    listed = Listed("a", entry(args=(1,), catch_up=3), SETTINGS, state=fresh["a"])
    assert agenda.update([listed], START + 5 * HOUR) == {}
    assert len(dues(agenda, START + 5 * HOUR)) == 3


def test_due_times_during_a_pause_are_not_caught_up() -> None:
    agenda = Agenda()
    fresh = agenda.update([Listed("a", entry(), SETTINGS)], START)
    paused = agenda.update([Listed("a", entry(enabled=False), SETTINGS, state=fresh["a"])], START + 1)
    assert (agenda.next(), len(agenda)) == (None, 0)
    state = paused.get("a", fresh["a"])
    resumed = agenda.update([Listed("a", entry(), SETTINGS, state=state)], FIRST + 9.5 * HOUR)
    assert resumed["a"].since == FIRST + 9.5 * HOUR
    assert dues(agenda, FIRST + 9.5 * HOUR) == []
    assert agenda.next() == FIRST + 10 * HOUR


def test_dropped_and_invalid_entries_are_not_due() -> None:
    agenda = agenda_of(entry("a"), entry("b"))
    agenda.drop(["a", "nobody"])
    agenda.update([Listed("b", None, SETTINGS, error="wrong")], START)
    assert (agenda.next(), len(agenda)) == (None, 0)
    assert agenda.due(FIRST, 10) == []


# -- clock changes --


def test_clock_set_back_repeats_no_call() -> None:
    agenda = agenda_of(entry())
    assert dues(agenda, FIRST) == [FIRST]
    assert dues(agenda, FIRST - DAY) == []
    for number in range(24 * 60):
        assert dues(agenda, FIRST - DAY + number * 60) == []
    assert dues(agenda, FIRST + HOUR) == [FIRST + HOUR]


def test_clock_set_forward_catches_up_once() -> None:
    agenda = agenda_of(entry(), entry("b", catch_up="skip"), entry("c", catch_up=2))
    assert len(dues(agenda, FIRST)) == 3
    found = {each.name: each.dues for each in take(agenda, FIRST + DAY + 120)}
    assert found == {"a": (FIRST + DAY,), "b": (), "c": (FIRST + DAY - HOUR, FIRST + DAY)}
    assert dues(agenda, FIRST + DAY + 121) == []
    assert agenda.next() == FIRST + DAY + HOUR


# -- jitter --


def test_jitter_is_the_same_in_all_processes() -> None:
    assert share("a", FIRST) == share("a", FIRST + 1e-8)
    shares = [share(f"entry {number}", FIRST) for number in range(1000)]
    assert all(0 <= each < 1 for each in shares)
    assert max(Counter(int(each * 10) for each in shares).values()) < 150
    one, other = agenda_of(entry(jitter=600)), agenda_of(entry(jitter=600))
    assert one.next() == other.next() == FIRST + 600 * share("a", FIRST)


def test_jitter_delays_the_call_but_not_its_due_time() -> None:
    agenda = agenda_of(entry(jitter=600))
    at = agenda.next()
    assert at is not None
    assert FIRST < at < FIRST + 600
    assert dues(agenda, at - 0.001) == []
    assert dues(agenda, at) == [FIRST]


def test_jitter_does_not_make_a_call_late() -> None:
    agenda = agenda_of(entry(jitter=1800, catch_up="skip"))
    at = agenda.next()
    assert at is not None
    assert dues(agenda, at + LATE_SECONDS) == [FIRST]


# -- custom schedules --


class CustomSchedule(Schedule):
    """found: what it returns or raises."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found

    def next(self, after: datetime) -> datetime | None:
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found(after) if callable(self.found) else self.found  # type: ignore[no-any-return]

    previous = next


@pytest.mark.parametrize(
    "found",
    [
        *(ValueError("wrong"), ZeroDivisionError(), "tomorrow", 5, datetime(2030, 1, 1), lambda after: after),
        *(lambda after: after - timedelta(days=1), lambda after: after.replace(tzinfo=None)),
    ],
    ids=["error", "another", "text", "number", "naive", "the-same", "earlier", "no-zone"],
)
def test_invalid_next_does_not_affect_other_entries(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    agenda = agenda_of(entry("own", schedule=CustomSchedule(found)), entry("b"))
    assert len(agenda) == 1
    assert "the entry own is not called" in caplog.text
    assert dues(agenda, FIRST) == [FIRST]


def test_invalid_previous_does_not_affect_other_entries(caplog: pytest.LogCaptureFixture) -> None:
    """next() is valid, but previous() never ends."""
    agenda = agenda_of(
        entry("own", schedule=CustomSchedule(lambda after: after + timedelta(hours=1))), entry("b")
    )
    found = take(agenda, FIRST + HOUR)
    assert [each.name for each in found] == ["b"]
    assert "the entry own is not called" in caplog.text
    assert take(agenda, FIRST + 2 * HOUR)[0].name == "b"


def test_custom_schedule_without_repr_is_equal_in_all_processes() -> None:
    agenda = Agenda()
    one, other = (entry(schedule=CustomSchedule(lambda after: after + timedelta(hours=1))) for _ in range(2))
    fresh = agenda.update([Listed("a", one, SETTINGS)], START)
    assert agenda.update([Listed("a", other, SETTINGS, state=fresh["a"])], START + 60) == {}


# -- many entries, random steps --


def test_each_of_thousands_of_entries_is_called_once() -> None:
    entries = [
        entry(f"e{number}", schedule=f"{number % 60} * * * *", jitter=number % 7) for number in range(5000)
    ]
    agenda = agenda_of(*entries)
    called: Counter[str] = Counter()
    for second in range(0, 3600 + 10, 5):
        while found := take(agenda, START + second, 300):
            called.update(each.name for each in found for _ in each.dues)
    assert set(called.values()) == {1}
    assert len(called) == len(agenda) == 5000


@given(
    every=st.integers(1, 50),
    catch_up=st.sampled_from(["latest", "skip", 1, 2, 5, 1000]),
    jitter=st.sampled_from([0.0, 0.0, 3.0, 100.0]),
    max_runs=st.none() | st.integers(1, 6),
    steps=st.lists(st.integers(-300, 400), max_size=40),
)
def test_each_due_time_is_called_at_most_once(
    every: int, catch_up: str | int, jitter: float, max_runs: int | None, steps: list[int]
) -> None:
    """Compare with the rules: only the last due times between two looks, for any changes of the clock."""
    agenda = agenda_of(entry(schedule=every, catch_up=catch_up, jitter=jitter, max_runs=max_runs))
    now, done, called = START, START, []
    for step in steps:
        now += step
        found = take(agenda, now)
        made = [due for each in found for due in each.dues]
        called += made
        assert called == sorted(set(called))
        assert all(due + share("a", due) * jitter <= now for due in made)
        if jitter or not found:
            continue
        missed = [START + number * every for number in range(1, int(now - START) // every + 1)]
        missed = [due for due in missed if due > done]
        if catch_up == "skip":
            expected = [due for due in missed[-1:] if now - due <= LATE_SECONDS]
        else:
            expected = missed[-(1 if catch_up == "latest" else int(catch_up)) :]
        if max_runs is not None:
            expected = expected[-(max_runs - len(called) + len(made)) :]
        assert made == expected
        done = missed[-1]
    assert max_runs is None or len(called) <= max_runs
