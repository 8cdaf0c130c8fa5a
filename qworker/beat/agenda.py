"""The agenda: which entry is due when, and which due times are called.

Comes from:  the service, with the catalog, and later with changed entries.
Goes to:     the service: due entries.
Thread:      beat.

It uses no clock. All times here are epoch seconds; those of schedules are datetimes.
"""

from __future__ import annotations

import heapq
import logging
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from qworker.beat.catalog import Listed, error_text, marked
from qworker.beat.entry import ALLOW, SKIP, Entry
from qworker.beat.kinds import schedule_text
from qworker.beat.schedules import schedule
from qworker.beat.store import EntryState

logger = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""A due time older than this was missed."""
BIT = timedelta(microseconds=1)
MOST_LOOKS = 10_000
"""Maximum due times examined for one call: jitter may postpone a call past millions of due times."""


class DueEntry(NamedTuple):
    """An entry that is due. dues: the due times to call, oldest first; empty if all were missed. upto: the
    last due time handled."""

    name: str
    entry: Entry
    state: EntryState
    dues: tuple[float, ...]
    upto: float


@dataclass(slots=True)
class _Plan:
    """due: epoch seconds. number: of the plan; heap items with another number are obsolete."""

    entry: Entry
    state: EntryState
    due: float
    number: int


class Agenda:
    """zone: for schedules without one. remembered: how many seconds called due times are remembered.

    An entry whose last due time is before 1970, or in the future by more than *remembered*, starts afresh:
    some leader's clock was wrong, and the entry would not be called until then.
    """

    def __init__(self, zone: tzinfo = UTC, remembered: float = math.inf) -> None:
        self._zone = zone
        self._remembered = remembered
        self._plans: dict[str, _Plan] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._count = 0
        self.wrong: dict[str, str] = {}
        """Why entries with failing schedules are not called, by name."""

    def __len__(self) -> int:
        """Return the number of entries with a next due time."""
        return len(self._plans)

    def update(self, listed: Iterable[Listed], now: float) -> dict[str, EntryState]:
        """Add new or changed entries; return the states to store for those that start afresh."""
        fresh: dict[str, EntryState] = {}
        for each in listed:
            if each.name in self._plans or each.name in self.wrong:
                self.drop([each.name])
            if each.entry is None and not each.removed:
                continue
            state = each.state or EntryState()
            seen = seen_as(each)
            if state.seen != seen:
                state = state._replace(seen=seen, since=round(now, 6), error=None)
                fresh[each.name] = state
            elif not 0 <= _base(state) <= now + self._remembered:
                state = state._replace(since=round(now, 6), last_due=None)
                fresh[each.name] = state
            if each.entry is None:
                continue
            try:
                entry = anchored(each.entry, state)
            except Exception as error:  # noqa: BLE001 - the clock may be outside the calendar
                self._report_error(each.name, error)
            else:
                self.plan(each.name, entry, state)
        return fresh

    def drop(self, names: Iterable[str]) -> None:
        """Remove entries."""
        for name in names:
            self._plans.pop(name, None)
            self.wrong.pop(name, None)

    def plan(self, name: str, entry: Entry, state: EntryState, not_before: float = 0.0) -> float | None:
        """Plan the next due time of *entry* and return it; None if there is none, or if the schedule fails.

        not_before: epoch seconds before which due() does not return the entry.
        """
        self._plans.pop(name, None)
        if not entry.enabled or (entry.max_runs is not None and state.runs >= entry.max_runs):
            return None
        try:
            found = entry.next(self._instant(_base(state)))
            due = None if found is None else found.timestamp()
        except Exception as error:  # noqa: BLE001 - schedules and time zones may be user code
            self._report_error(name, error)
            return None
        if due is None:
            return None
        self._count += 1
        self._plans[name] = _Plan(entry, state, due, self._count)
        late = share(name, due) * entry.jitter if entry.jitter else 0.0
        heapq.heappush(self._heap, (max(due + late, not_before), self._count, name))
        return due

    def learn(self, name: str, state: EntryState) -> bool:
        """Replace the state of an entry whose calls turned out to have been made. Return False if it has been
        changed or removed since."""
        plan = self._plans.get(name)
        if plan is None or (state.seen, state.since) != (plan.state.seen, plan.state.since):
            return False
        self.plan(name, plan.entry, state)
        return True

    def next(self) -> float | None:
        """Return the epoch second when the next entry is due; None for never."""
        while self._heap:
            at, number, name = self._heap[0]
            plan = self._plans.get(name)
            if plan is not None and plan.number == number:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float, most: int) -> list[DueEntry]:
        """Remove and return due entries with *most* calls in total; the last entry may exceed that. The
        caller plans them again."""
        found: list[DueEntry] = []
        calls = 0
        while calls < most and (at := self.next()) is not None and at <= now:
            _, _, name = heapq.heappop(self._heap)
            plan = self._plans.pop(name)
            try:
                due = self._choose(name, plan, now)
            except Exception as error:  # noqa: BLE001 - schedules and time zones may be user code
                self._report_error(name, error)
                continue
            found.append(due)
            calls += max(1, len(due.dues))
        return found

    def _choose(self, name: str, plan: _Plan, now: float) -> DueEntry:
        entry, state = plan.entry, plan.state
        base = _base(state)
        dues: list[float] = []
        # Several calls at once would overlap.
        wanted = entry.catch_up if isinstance(entry.catch_up, int) and entry.overlap == ALLOW else 1
        if entry.max_runs is not None:
            wanted = min(wanted, entry.max_runs - state.runs)
        # In UTC: adding to an ambiguous local time would return its first occurrence.
        before, upto = (datetime.fromtimestamp(now, UTC) + BIT).astimezone(self._zone), base
        looks = 0
        while len(dues) < wanted:
            looks += 1
            found = entry.previous(before) if looks <= MOST_LOOKS else None
            due = -math.inf if found is None else found.timestamp()
            if due <= base:
                if upto > base:
                    break
                # The search backwards did not find the planned due time: use that one.
                due, wanted = plan.due, 1
                upto = now if looks <= MOST_LOOKS else base
            elif found is not None:
                before = found
                if due + share(name, due) * entry.jitter > now:
                    continue  # it is in the future
            upto = max(upto, due)
            if entry.catch_up == SKIP and now - due - entry.jitter > LATE_SECONDS:
                break
            if entry.expires is not None and now >= due + entry.expires:
                break
            dues.append(due)
        return DueEntry(name, entry, state, tuple(reversed(dues)), upto)

    def _report_error(self, name: str, error: Exception) -> None:
        self.wrong[name] = text = error_text(error)
        logger.error("the entry %s is not called: %s", name, text, extra={"event": "entry-wrong"})

    def _instant(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, self._zone)


def share(name: str, due: float) -> float:
    """Return a number from 0 to 1 that is always the same for this entry and due time."""
    return zlib.crc32(f"{name}\0{round(due * 1_000_000)}".encode()) / 2**32


def seen_as(found: Listed) -> str:
    """Return text that differs when the entry has changed. Pausing and removing are changes, so that due
    times in the meantime are not made up for."""
    entry = found.entry
    if entry is None:
        return "removed"
    return schedule_text(entry.schedule) + ("" if entry.enabled else " paused") + marked(found.born)


def _base(state: EntryState) -> float:
    return state.since if state.last_due is None else max(state.since, state.last_due)


def anchored(entry: Entry, state: EntryState) -> Entry:
    """Return *entry* with its intervals counted from the time it was first seen."""
    if type(entry.schedule) is not schedule or entry.schedule.anchor is not None:
        return entry
    return entry.changed({"schedule": entry.schedule.anchored(datetime.fromtimestamp(state.since, UTC))})
