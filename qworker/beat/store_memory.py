"""Schedules in the memory of one process, with entries from settings and code only.

Comes from:  ``stores.py``, if there is no other store for schedules.
Goes to:     nothing.
Thread:      any; a lock protects the data.

Other processes do not see it: two schedulers with the same entries call them twice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from qworker.beat.store import Firing, Lease, Row, ScheduleStore, Slot, State, once
from qworker.clock import Clock
from qworker.errors import LeaseLost
from qworker.transports.lease import Sender

MOST_SLOTS = 1000
"""Maximum slots kept for an entry."""


class MemoryScheduleStore(ScheduleStore):
    """shared: accept edits like a shared store, for tests."""

    def __init__(self, clock: Clock, shared: bool = False) -> None:
        self._clock = clock
        self.shared = shared
        self._lock = threading.Lock()
        self._lease = Lease()  # this and all below: changed under the lock
        self._rows: dict[str, Row] = {}
        self._slots: dict[str, dict[float, Slot]] = {}

    def is_with(self, sender: Sender) -> bool:
        return False

    def look(self) -> Lease:
        return self._lease

    def take(self, holder: str, known: Lease, about: str = "") -> Lease:
        with self._lock:
            if self._lease[:3] == known[:3]:
                now = self._lease
                self._lease = now._replace(
                    holder=holder, generation=now.generation + 1, beats=now.beats + 1, about=about
                )
            return self._lease

    def renew(self, lease: Lease) -> Lease:
        with self._lock:
            if self._is(lease):
                self._lease = self._lease._replace(beats=self._lease.beats + 1)
            return self._lease

    def resign(self, lease: Lease) -> None:
        with self._lock:
            if self._is(lease):
                self._lease = self._lease._replace(holder="")

    def _is(self, lease: Lease) -> bool:
        return (self._lease.holder, self._lease.generation) == (lease.holder, lease.generation)

    def _check(self, lease: Lease) -> None:
        if not self._is(lease):
            raise LeaseLost(f"{self._lease.holder or 'no process'} is now the leader of the schedulers")

    def rows(self, after: int = -1) -> list[Row]:
        with self._lock:
            return [row for row in self._rows.values() if row.version > after]

    def row(self, name: str) -> Row | None:
        return self._rows.get(name)

    def edit(self, name: str, edit: bytes | None, known: int) -> bool:
        with self._lock:
            row = self._rows.get(name)
            if (row.version if row else 0) != known:
                return False
            version = self._lease.version + 1
            self._lease = self._lease._replace(version=version)
            self._rows[name] = Row(name, version, edit, row and row.state)
            return True

    def note(self, lease: Lease, states: Mapping[str, State]) -> None:
        with self._lock:
            self._check(lease)
            self._note(states)

    def _note(self, states: Mapping[str, State]) -> None:
        for name, state in states.items():
            row = self._rows.get(name)
            self._rows[name] = row._replace(state=state) if row else Row(name, 0, None, state)

    def prune(self, lease: Lease, versions: Mapping[str, int]) -> None:
        with self._lock:
            self._check(lease)
            for name, version in versions.items():
                row = self._rows.get(name)
                if row is not None and row.edit is None and row.version == version:
                    del self._rows[name]

    def fire(self, lease: Lease, firings: Sequence[Firing], sender: Sender) -> list[Firing]:
        with self._lock:
            self._check(lease)
            free = [each for each in once(firings) if each.due not in self._slots.get(each.name, {})]
            for each in free:
                slots = self._slots.setdefault(each.name, {})
                slots[each.due] = Slot(each.name, each.due, self._clock.now(), each.task_id)
        try:
            sender.push([envelope for each in free for envelope in each.envelopes])
        except BaseException:
            with self._lock:
                for each in free:
                    del self._slots[each.name][each.due]
            raise
        with self._lock:
            for each in free:
                slots = self._slots[each.name]
                if len(slots) > MOST_SLOTS:
                    del slots[min(slots)]
            self._note({each.name: each.state for each in firings})
        return free

    def pending(self) -> list[Slot]:
        return []

    def sent(self, lease: Lease, slots: Sequence[tuple[str, float]]) -> None:
        """Nothing to do: slots are never pending."""

    def slots(self, name: str, most: int = 100) -> list[Slot]:
        with self._lock:
            return sorted(self._slots.get(name, {}).values(), reverse=True)[:most]

    def sweep(self, before: float) -> int:
        with self._lock:
            count = 0
            for slots in self._slots.values():
                for due in [due for due in slots if due < before]:
                    del slots[due]
                    count += 1
            return count
