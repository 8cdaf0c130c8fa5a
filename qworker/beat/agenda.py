"""The agenda: which entry is due when, and which due times are called.

Comes from:  the service, with the catalog; and again when something of it was changed.
Goes to:     back to it: what is due.
Thread:      beat.

It asks no clock. All times here are epoch seconds, those of schedules are datetimes.
"""

from __future__ import annotations

import heapq
import logging
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from qworker.beat.catalog import Listed
from qworker.beat.entry import SKIP, Entry
from qworker.beat.kinds import told
from qworker.beat.schedules import schedule
from qworker.beat.store import State
from qworker.errors import InvalidSchedule

logger = logging.getLogger(__name__)

LATE_SECONDS = 60.0
"""A due time that is older than this was missed."""
BIT = timedelta(microseconds=1)


class Due(NamedTuple):
    """An entry that is due. dues: the due times that are to be called, the oldest first; none where all were
    missed. upto: the last of those that are done with."""

    name: str
    entry: Entry
    state: State
    dues: tuple[float, ...]
    upto: float


@dataclass(slots=True)
class _Plan:
    """number: of the plan; what the heap has of others of the same name is old."""

    entry: Entry
    state: State
    number: int


class Agenda:
    """zone: of schedules that have none of their own."""

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone
        self._plans: dict[str, _Plan] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._count = 0
        self.wrong: dict[str, str] = {}
        """Why entries are not called whose schedule fails, by their names."""

    def __len__(self) -> int:
        """How many entries will be due some time."""
        return len(self._plans)

    def update(self, listed: Iterable[Listed], now: float) -> dict[str, State]:
        """Take in entries, new ones or as they are now; return what is to be kept of those that begin
        anew."""
        fresh: dict[str, State] = {}
        for each in listed:
            if each.name in self._plans or each.name in self.wrong:
                self.drop([each.name])
            if each.entry is None and not each.removed:
                continue
            state = each.state or State()
            seen = _seen(each.entry)
            if state.seen != seen:
                state = state._replace(seen=seen, since=round(now, 6), error=None)
                fresh[each.name] = state
            if each.entry is not None:
                self.plan(each.name, anchored(each.entry, state), state)
        return fresh

    def drop(self, names: Iterable[str]) -> None:
        """Forget entries."""
        for name in names:
            self._plans.pop(name, None)
            self.wrong.pop(name, None)

    def plan(self, name: str, entry: Entry, state: State) -> float | None:
        """Note when *entry* is due next; return that, None for never, as where its schedule fails."""
        self._plans.pop(name, None)
        if not entry.enabled or (entry.max_runs is not None and state.runs >= entry.max_runs):
            return None
        try:
            found = entry.next(self._instant(_base(state)))
        except InvalidSchedule as error:
            self._tell(name, error)
            return None
        if found is None:
            return None
        due = found.timestamp()
        self._count += 1
        self._plans[name] = _Plan(entry, state, self._count)
        late = share(name, due) * entry.jitter if entry.jitter else 0.0
        heapq.heappush(self._heap, (due + late, self._count, name))
        return due

    def next(self) -> float | None:
        """When something is due next; None for never."""
        while self._heap:
            at, number, name = self._heap[0]
            plan = self._plans.get(name)
            if plan is not None and plan.number == number:
                return at
            heapq.heappop(self._heap)
        return None

    def due(self, now: float, most: int) -> list[Due]:
        """Take out the entries that are due, until *most* calls are to be made of them, or more for the last
        entry's sake. Plan them again afterwards."""
        found: list[Due] = []
        calls = 0
        while calls < most and (at := self.next()) is not None and at <= now:
            _, _, name = heapq.heappop(self._heap)
            plan = self._plans.pop(name)
            try:
                due = self._choose(name, plan, now)
            except InvalidSchedule as error:
                self._tell(name, error)
                continue
            found.append(due)
            calls += max(1, len(due.dues))
        return found

    def _choose(self, name: str, plan: _Plan, now: float) -> Due:
        entry, state = plan.entry, plan.state
        base = _base(state)
        dues: list[float] = []
        wanted = entry.catch_up if isinstance(entry.catch_up, int) else 1
        if entry.max_runs is not None:
            wanted = min(wanted, entry.max_runs - state.runs)
        before, upto = self._instant(now) + BIT, base
        while len(dues) < wanted and (found := entry.previous(before)) is not None:
            due = found.timestamp()
            if due <= base:
                break
            before = found
            if due + share(name, due) * entry.jitter > now:
                continue  # it will come yet
            upto = max(upto, due)
            if entry.catch_up == SKIP and now - due - entry.jitter > LATE_SECONDS:
                break
            if entry.expires is not None and now >= due + entry.expires:
                break
            dues.append(due)
        return Due(name, entry, state, tuple(reversed(dues)), upto)

    def _tell(self, name: str, error: InvalidSchedule) -> None:
        self.wrong[name] = str(error)
        logger.error("the entry %s is not called: %s", name, error, extra={"event": "entry-wrong"})

    def _instant(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, self._zone)


def share(name: str, due: float) -> float:
    """From 0 to 1, the same for the same due time whoever asks."""
    return zlib.crc32(f"{name}\0{round(due * 1_000_000)}".encode()) / 2**32


def _seen(entry: Entry | None) -> str:
    """By what it is known whether an entry is as it was. One that is paused or removed is another: what is
    due meanwhile was not missed."""
    if entry is None:
        return "removed"
    return told(entry.schedule) + ("" if entry.enabled else " paused")


def _base(state: State) -> float:
    return state.since if state.last_due is None else max(state.since, state.last_due)


def anchored(entry: Entry, state: State) -> Entry:
    """Return *entry* with its intervals counted from when it was first seen."""
    if type(entry.schedule) is not schedule or entry.schedule.anchor is not None:
        return entry
    return entry.changed({"schedule": entry.schedule.anchored(datetime.fromtimestamp(state.since, UTC))})
