"""The wall clock of a real ``qworker beat`` is set, and daylight saving time changes: entries are called
as documented.

faketime intercepts the system clock; see faketime.py. A night takes seconds here:
``TEST_QWORKER_CLOCK_RATE=60`` makes an hour take a minute. On a busy machine it runs more slowly, so that
the process does not miss more due times than it catches up.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from qworker.beat.store import EntryState, Slot
from qworker.clock import to_epoch
from tests.acceptance.beats import BeatProcess
from tests.acceptance.faketime import WallClock
from tests.acceptance.harness import PATIENCE, TASKS, Site

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

RATE = float(os.environ.get("TEST_QWORKER_CLOCK_RATE", "7200"))
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
ALL = 1000
"""More due times than an entry misses here: all of them are called."""
NOON = datetime(2027, 6, 1, 12, tzinfo=UTC).timestamp()
LAST = 30
"""Due times of ``second`` that are caught up: more than this process is ever late on a busy machine."""
STEPPED: dict[str, dict[str, Any]] = {
    "second": {"schedule": 1, "catch_up": LAST},
    "three": {"schedule": "*/10 * * * *", "catch_up": 3},
    "all": {"schedule": "30 * * * *", "catch_up": ALL},
    "latest": {"schedule": "30 * * * *"},
    "skip": {"schedule": "30 * * * *", "catch_up": "skip"},
}
ZONES = (
    "Europe/Berlin",
    "America/Havana",  # at midnight
    "Antarctica/Troll",  # by two hours
    "Australia/Lord_Howe",  # by half an hour
)
MORE_ZONES = (
    "Europe/Dublin",
    "America/New_York",
    "America/St_Johns",
    "Africa/Cairo",  # at midnight
    "Pacific/Chatham",  # at a quarter to three
)
LEFT_OUT = "Pacific/Apia"
"""A whole day was skipped there, at the end of 2011."""
AROUND = 8 * MINUTE
"""Before and after the skipped or repeated times."""


class Schedules:
    """One ``qworker beat`` on *site* with the wall clock *clock*, and its calls."""

    def __init__(self, site: Site, clock: WallClock, schedule: dict[str, dict[str, Any]]) -> None:
        self._site = site
        entries = {name: {"task": "periodic", **given} for name, given in schedule.items()}
        site.settings["beat_schedule"] = json.dumps(entries)
        self._app = site.client
        self._app.conf.update(beat_scope="faults")
        self.process = BeatProcess(site, 1, environment=clock.environment, beat_scope="faults")
        site.until(lambda: all(self.state(name) for name in schedule), f"the entries to be known to {TASKS}")

    def state(self, name: str) -> EntryState | None:
        row = self._app.schedules.store.row(name)
        return row and row.state

    def since(self, name: str) -> float:
        """The time from which due times of the entry *name* count."""
        state = self.state(name)
        assert state is not None
        return state.since

    def slots(self, name: str) -> list[Slot]:
        """The calls of the entry *name*, in the order of their due times."""
        return self._app.schedules.store.slots(name, 100_000)[::-1]

    def dues(self, name: str) -> list[float]:
        return [slot.due for slot in self.slots(name)]

    def called(self, name: str, count: int) -> None:
        """Wait until the entry *name* has been called *count* more times."""
        seen = len(self.slots(name))
        self._site.until(
            lambda: len(self.slots(name)) >= seen + count or not self.process.alive, f"calls of {name}"
        )
        assert self.process.alive, self.process.log

    def called_until(self, name: str, due: float, seconds: float = PATIENCE) -> None:
        """Wait until the entry *name* has been called for this due time or a later one."""
        self._site.until(lambda: (self.dues(name) or [0.0])[-1] >= due, f"calls of {name}", seconds)

    def add(self, name: str, schedule: object) -> None:
        self._app.schedules.add(name, "periodic", schedule)

    def end(self) -> None:
        """Stop it; each call must be one message, and none before its time."""
        assert self.process.end() == 0, self.process.log
        assert "ERROR" not in self.process.log, self.process.log
        messages: Counter[tuple[str, float]] = Counter()
        for (headers,) in self._site.query("SELECT headers FROM message"):
            given = json.loads(headers)
            messages[given["periodic_task_name"], to_epoch(given["periodic_task_due"])] += 1
        names = {name for name, _ in messages}
        slots = [(name, slot) for name in names for slot in self.slots(name)]
        assert messages == Counter((name, slot.due) for name, slot in slots)
        assert [(name, slot) for name, slot in slots if slot.at < slot.due] == []


Start = Callable[[float, dict[str, dict[str, Any]]], tuple[WallClock, Schedules]]


@pytest.fixture
def start(site: Site) -> Iterator[Start]:
    """Starts a ``qworker beat`` with its clock at an epoch second, and with entries."""
    with ExitStack() as stack:

        def begin(now: float, schedule: dict[str, dict[str, Any]]) -> tuple[WallClock, Schedules]:
            clock = WallClock(site.path, now)
            schedules = Schedules(site, clock, schedule)
            stack.callback(schedules.process.end)
            return clock, schedules

        yield begin


def gaps(dues: list[float], every: float = 1.0) -> list[int]:
    """For due times at intervals of *every* seconds: the length of each gap, in intervals."""
    steps = [round((later - earlier) / every) for earlier, later in pairwise(dues)]
    return [step for step in steps if step != 1]


# -- setting the clock --


@pytest.mark.parametrize("step", [HOUR, DAY])
def test_clock_set_forward(start: Start, step: float) -> None:
    """Missed due times are caught up as ``catch_up`` says."""
    clock, schedules = start(NOON + 10, STEPPED)
    schedules.called("second", 1)
    clock.step(step)
    schedules.called("second", LAST + 1)
    schedules.end()
    since, later = schedules.since("second"), NOON + 10 + step
    hourly = [NOON + 30 * MINUTE + hours * HOUR for hours in range(int(step / HOUR))]
    assert schedules.dues("all") == hourly
    assert schedules.dues("latest") == hourly[-1:]
    assert schedules.dues("skip") == []
    tenths = [later - 10 - number * 10 * MINUTE for number in (2, 1, 0)]
    assert schedules.dues("three") == tenths
    dues = schedules.dues("second")
    (gap,) = gaps(dues)
    assert dues[0] == since + 1
    made_up = [slot for slot in schedules.slots("second") if slot.due > since + step / 2][:LAST]
    assert len({slot.task_id for slot in made_up}) == LAST
    assert {round(slot.at - made_up[-1].due) for slot in made_up} <= {0, 1}, "all at once, up to now"
    assert step - LAST - 3 <= gap <= step


@pytest.mark.parametrize("step", [HOUR, DAY])
def test_clock_set_back(start: Start, step: float) -> None:
    """Nothing is called again, and entries wait until the clock reaches that time again."""
    clock, schedules = start(NOON + 20 * MINUTE + 10, STEPPED)
    clock.set(NOON + 30 * MINUTE - 1)
    schedules.called("latest", 1)
    clock.step(-step)
    schedules.add("marker", 0.2)  # starts by the clock as it is now
    schedules.called("marker", 3)
    before = {name: schedules.dues(name) for name in STEPPED}
    assert schedules.since("marker") < schedules.since("second") - step / 2
    schedules.called("marker", 3)
    assert {name: schedules.dues(name) for name in STEPPED} == before
    clock.set(NOON + 30 * MINUTE - 0.2)  # a due time for the second time
    schedules.called("second", 2)
    schedules.end()
    dues = [due for due in schedules.dues("second") if due > NOON + 25 * MINUTE]
    assert gaps(dues) == [], "each second once"
    for name in ("all", "latest", "skip", "three"):
        assert schedules.dues(name) == [NOON + 30 * MINUTE], name


def test_clock_with_small_corrections(start: Start) -> None:
    """By 50 ms in both directions, as by NTP."""
    clock, schedules = start(NOON, {"tenth": {"schedule": 0.1, "catch_up": ALL}, "second": STEPPED["second"]})
    schedules.called("tenth", 1)
    for number in range(20):
        clock.step(0.05 if number % 3 else -0.05)
        schedules.called("tenth", 1)
    schedules.called("second", 1)
    schedules.end()
    assert gaps(schedules.dues("tenth"), 0.1) == []
    assert gaps(schedules.dues("second")) == []
    assert len(schedules.dues("tenth")) > 20


# -- daylight saving time --


def changes(name: str, year: int) -> list[datetime]:
    """The instants of *year*, to the minute, at which the UTC offset of a zone changes: the first ones
    with the new offset."""
    zone, found = ZoneInfo(name), []
    day = datetime(year, 1, 1, tzinfo=UTC)
    while day.year == year:
        later = day + timedelta(days=1)
        if offset(day, zone) != offset(later, zone):
            minutes = (day + timedelta(minutes=number) for number in range(1, 24 * 60 + 1))
            found.append(next(each for each in minutes if offset(each, zone) == offset(later, zone)))
        day = later
    return found


def offset(instant: datetime, zone: ZoneInfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def expected(entry: str, zone: ZoneInfo, begin: float, end: float) -> list[float]:
    """The due times of a crontab after *begin* and up to *end* as documented, found by examining each
    minute, including a day before and after."""
    minute, hour = entry.split()[:2]
    first = datetime.fromtimestamp(begin, UTC).replace(second=0, microsecond=0) - timedelta(days=2)
    instants = [first + timedelta(minutes=number) for number in range(4 * 24 * 60)]
    if minute.startswith("*") or hour.startswith("*"):
        numbers = range(0, 60, int(minute[2:] or 1)) if minute.startswith("*") else [int(minute)]
        hours = range(24) if hour.startswith("*") else [int(hour)]
        due = [
            each
            for each in instants
            if each.astimezone(zone).minute in numbers and each.astimezone(zone).hour in hours
        ]
    else:
        shows: dict[datetime, datetime] = {}  # the first occurrence
        for each in instants:
            shows.setdefault(each.astimezone(zone).replace(tzinfo=None), each)
        days = sorted({wall.date() for wall in shows})
        every = [days[0] + timedelta(days=number) for number in range((days[-1] - days[0]).days)]
        walls = [
            datetime.combine(day, datetime.min.time()).replace(hour=int(hour), minute=int(minute))
            for day in every
        ]
        # A skipped time is moved to the end of the gap, the first later time.
        due = [min(instant for wall, instant in shows.items() if wall >= each) for each in walls]
    return sorted({each.timestamp() for each in due if begin < each.timestamp() <= end})


def at(wall: datetime) -> str:
    return f"{wall.minute} {wall.hour} * * *"


APIA = changes(LEFT_OUT, 2011)[-1]
NIGHTS = [
    *((name, change) for name in ZONES for change in changes(name, 2027)),
    (LEFT_OUT, APIA),
    *(
        pytest.param(name, change, marks=pytest.mark.more_cases)
        for name in MORE_ZONES
        for change in changes(name, 2027)
    ),
]


def test_zones_have_two_changes_per_year() -> None:
    assert {len(changes(name, 2027)) for name in (*ZONES, *MORE_ZONES)} == {2}
    assert datetime(2011, 12, 30, 10, tzinfo=UTC) == APIA


@pytest.mark.parametrize(("name", "change"), NIGHTS, ids=str)
def test_night_of_a_clock_change(start: Start, name: str, change: datetime) -> None:
    """Times in the gap, in the repeated hour and around them, every quarter and every minute: each entry
    is called once at the due times that cron would have."""
    zone = ZoneInfo(name)
    before, after = ((change + timedelta(minutes=number)).astimezone(zone) for number in (-1, 0))
    by = offset(after, zone) - offset(before, zone)
    moved = min(abs(by), timedelta(hours=2))  # this much of a day that is skipped
    early = min(before.replace(tzinfo=None) + timedelta(minutes=1), after.replace(tzinfo=None))
    midst = early + moved / 2
    crontabs = {
        "minute": "* * * * *",
        "quarter": "*/15 * * * *",
        "hourly": f"{midst.minute} * * * *",
        "by the hour": f"*/15 {midst.hour} * * *",
        "before": at(early - timedelta(minutes=7)),
        "at the beginning": at(early),
        "in the midst": at(midst),
        "at the end": at(early + moved),
        "after": at(early + moved + timedelta(minutes=7)),
    }
    entries = {
        each: {"schedule": {"crontab": text, "tz": name}, "catch_up": ALL} for each, text in crontabs.items()
    }
    twice = moved.total_seconds() if by < timedelta(0) else 0.0
    clock, schedules = start(change.timestamp() - twice - AROUND, entries)
    end = change.timestamp() + twice + AROUND
    rate = RATE / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    clock.run(rate)
    schedules.called_until("minute", end, PATIENCE + (end - schedules.since("minute")) / rate)
    schedules.end()
    found = {each: [due for due in schedules.dues(each) if due <= end] for each in crontabs}
    for each, text in crontabs.items():
        assert found[each] == expected(text, zone, schedules.since(each), end), each
    assert len(found["in the midst"]) == 1, "at the end of the gap, or the first time of two"
