"""Joins in a store that maps keys to bytes.

Comes from:  ``backend.py``, for ``memory.py`` and ``filesystem.py``.
Goes to:     one key for each join, and one for every TOGETHER members.
Thread:      any; a join is changed only while its key is locked.

Any operation may be interrupted between two keys, and repeated. So the parts of several members share one
key, and the join only records which of these keys are complete: recording that twice changes nothing. The
cost of a part does not depend on the size of the join. A join to be deleted is marked first, and its own key
is deleted last, so that the next claim can continue an interrupted deletion. A separate key with an expiry
records that the join was finished.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from qworker.backends.joins import MAX_PARTS, PUSH_SECONDS, Finished, Join, Joins, remembered
from qworker.clock import Clock
from qworker.process.crash_points import crash_point
from qworker.transports.join_parts import by_join, check_join
from qworker.transports.lease import Envelope, Part, Sender
from qworker.transports.portions import first_that_fit

JOIN_PREFIX = "qworker-join-"
PART_PREFIX = "qworker-part-"
DONE_PREFIX = "qworker-lock-join-"
BODY_PREFIX = "qworker-lock-body-"
"""Prefix of keys that are deleted when they expire, like the locks of ``backend.py``."""
TOGETHER = 32
"""Number of members whose parts share one key."""


class Keys(Protocol):
    """The part of KeyValueBackend used here."""

    def locked(self, key: str) -> AbstractContextManager[Any]: ...

    def read(self, key: str) -> bytes | None: ...

    def write(self, key: str, value: bytes, ttl: float | None) -> None: ...

    def remove(self, key: str) -> None: ...

    def list(self, prefix: str) -> Iterable[str]:
        """Return the keys that begin with *prefix*, without locking."""


@dataclass
class JoinState:
    """The content of a join's key. due: epoch second at which it may be claimed. place: its position among
    joins opened together. complete: a bit for each key of parts, set when no part is missing there. gone: it
    is being deleted. added: numbers of the calls added later, by id."""

    id: str
    size: int
    body: str
    expires: float | None
    due: float | None
    opened: float
    place: int
    complete: int = 0
    token: str | None = None
    gone: bool = False
    added: dict[str, int] = field(default_factory=dict)

    @property
    def keys(self) -> int:
        """The number of keys for its parts."""
        return -(-self.size // TOGETHER)

    @property
    def finished(self) -> bool:
        return self.complete == (1 << self.keys) - 1


class KeyValueJoins(Joins):
    """Joins in the store *keys*."""

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def _read(self, key: str) -> JoinState | None:
        """Return the join at *key*; None if it is missing or damaged."""
        data = self._keys.read(key)
        try:
            return None if data is None else JoinState(**json.loads(data))
        except (ValueError, TypeError):
            return None

    def _write(self, key: str, state: JoinState) -> None:
        self._keys.write(key, json.dumps(vars(state)).encode(), None)

    def _state(self, key: str) -> JoinState | None:
        """Return the join at *key*; None if it is missing or being deleted."""
        state = self._read(key)
        return None if state is None or state.gone else state

    def open(self, joins: Sequence[Join]) -> None:
        """See Joins.open(). But if the process dies in the meantime, only some of the joins are stored."""
        for join in joins:
            check_join(join.id, join.size)
        now = self._clock.now()
        made: list[str] = []
        try:
            for place, (name, size, body, expires) in enumerate(joins):
                due = expires if size else 0.0
                state = JoinState(name, size, b64encode(body).decode(), expires, due, now, place)
                key = _key(name)
                with self._keys.locked(key):
                    if self._state(key) is None and self._keys.read(_done_key(key)) is None:
                        self._forget(key)
                        made.append(key)
                        self._write(key, state)
        except BaseException:
            for key in made:
                with self._keys.locked(key):
                    self._keys.remove(key)
            raise

    def grow(self, join: str, task_id: str) -> int | None:
        key = _key(join)
        with self._keys.locked(key):
            state = self._state(key)
            if state is None:
                return None
            if task_id in state.added:
                return state.added[task_id]
            if state.finished:
                return None
            number = state.added[task_id] = state.size
            if number % TOGETHER:
                state.complete &= ~(1 << number // TOGETHER)
            state.size += 1
            self._write(key, state)
            return number

    def add(self, parts: Sequence[Part]) -> None:
        for join, numbered in by_join(parts).items():
            key = _key(join)
            with self._keys.locked(key):
                state = self._state(key)
                if state is not None:
                    self._record(key, state, numbered)

    def _record(self, key: str, state: JoinState, numbered: Mapping[int, Part]) -> None:
        """Record the parts in *numbered*. The caller holds the lock of *key*."""
        together: dict[int, list[Part]] = defaultdict(list)
        for number, part in numbered.items():
            if number < state.size:
                together[number // TOGETHER].append(part)
        before = state.complete
        for place, some in together.items():
            if self._add_to(_part_key(key, place), some) == min(TOGETHER, state.size - place * TOGETHER):
                state.complete |= 1 << place
        crash_point("recording-parts")
        if state.complete != before:
            if state.finished and state.token is None:
                state.due = 0.0
            self._write(key, state)
        crash_point("parts-recorded")

    def _add_to(self, key: str, parts: Sequence[Part]) -> int:
        """Add *parts* to those in *key*; return their new number."""
        there = self._parts(key)
        count = len(there)
        for part in parts:
            there.setdefault(str(part.number), (part.task_id, part.status))
        if len(there) > count:
            self._keys.write(key, json.dumps(there).encode(), None)
        return len(there)

    def _parts(self, key: str) -> dict[str, tuple[str, str]]:
        """Return the parts in *key*: task id and state by the member's number."""
        data = self._keys.read(key)
        try:
            found: dict[str, tuple[str, str]] = {} if data is None else json.loads(data)
        except ValueError:  # damaged: treated as missing
            return {}
        return found

    # -- claims --

    def claim(self, limit: int, seconds: float) -> list[Finished]:
        now = self._clock.now()
        due: list[tuple[float, float, int, str, int]] = []
        for key in self._keys.list(JOIN_PREFIX):
            state = self._read(key)
            if state is not None and state.gone:
                with self._keys.locked(key):
                    if (again := self._read(key)) is not None and again.gone:
                        self._forget(key)
            elif state is not None and state.due is not None and state.due <= now:
                due.append((state.due, state.opened, state.place, key, state.size))
        found = []
        for key in first_that_fit(((key, size) for *_, key, size in sorted(due)[:limit]), MAX_PARTS):
            with self._keys.locked(key):
                state = self._state(key)
                if state is not None and state.due is not None and state.due <= now:
                    state.due, state.token = now + seconds, os.urandom(8).hex()
                    self._write(key, state)
                    found.append(self._claimed(key, state, now))
        return found

    def _claimed(self, key: str, state: JoinState, now: float) -> Finished:
        parts = [
            Part(state.id, int(number), *ended)
            for place in range(state.keys)
            for number, ended in self._parts(_part_key(key, place)).items()
        ]
        parts.sort(key=lambda part: part.number)
        overdue = len(parts) < state.size or (state.expires is not None and state.expires <= now)
        return Finished(state.id, state.token or "", b64decode(state.body), parts, overdue)

    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        key = _key(join.id)
        with self._keys.locked(key):
            state = self._state(key)
            if state is None or state.token != join.token:
                return False
            if not join.attempt:
                state.due = self._clock.now() + PUSH_SECONDS
                self._write(key, state)
        sender.push(envelopes)
        crash_point("body-sent")
        with self._keys.locked(key):
            state = self._state(key)
            if state is None or state.token != join.token:
                return False
            now = self._clock.now()
            self._keys.write(_done_key(key), b"1", remembered(state.expires, now) - now)
            self._forget(key)
        return True

    def _forget(self, key: str) -> None:
        """Delete the join at *key*, if any, with its parts. The caller holds the lock."""
        state = self._read(key)
        if state is None:
            return
        state.gone, state.due = True, None
        self._write(key, state)
        crash_point("forgetting-join")
        for place in range(state.keys):
            self._keys.remove(_part_key(key, place))
        self._keys.remove(key)

    def drop(self, joins: Collection[str]) -> None:
        for join in joins:
            key = _key(join)
            with self._keys.locked(key):
                self._forget(key)

    def hold(self, body: str, publication: int, seconds: float) -> int:
        key = BODY_PREFIX + body
        with self._keys.locked(key):
            held = self._keys.read(key)
            if held is None:
                self._keys.write(key, b"%d" % publication, seconds)
        return publication if held is None else int(held)

    def count(self) -> int:
        return sum(self._state(key) is not None for key in self._keys.list(JOIN_PREFIX))


def _key(join: str) -> str:
    """Return the key of *join*; its id may contain any characters."""
    return f"{JOIN_PREFIX}{sha256(join.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def _done_key(key: str) -> str:
    return DONE_PREFIX + key.removeprefix(JOIN_PREFIX)


def _part_key(key: str, place: int) -> str:
    return f"{PART_PREFIX}{key.removeprefix(JOIN_PREFIX)}-{place}"
