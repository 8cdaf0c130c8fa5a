"""Candidates: which file to try next, and when.

Comes from:  scans, notifications, and the outcome of earlier tries.
Goes to:     ``directory``, one path at a time.
Thread:      that of the SpoolDirectory.

A refused file is remembered with the reason. A file that is not due rests in a heap. A file whose lock is
held elsewhere is tried again when it has changed, after a delay that grows, since the change may be another
process's try.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple, Protocol
from zlib import crc32

from qworker.clock import Clock
from qworker.spooler.files.claiming import Reason, Refusal
from qworker.spooler.files.packet import path_key

FIRST_DELAY = 0.01
LONGEST_DELAY = 1.0
"""Seconds after a try in vain for which a locked file is left alone, whatever happens to it."""
LONGEST_LEFT = 5.0
"""The same for a file that was left alone for no known reason: it is tried again even without a change."""
MOST_TRIES = 10
"""The number of tries with the longest delay."""


class Share(NamedTuple):
    """Of *of* processes that share a directory, this is *number* (0 for the first). Each begins with its own
    files, so that they do not all try for the same lock, and then takes any."""

    number: int
    of: int


WHOLE = Share(0, 1)


class _Vain(NamedTuple):
    """Failed tries of a file whose lock is held elsewhere: how many, and when the next one may be, epoch
    seconds."""

    tries: int
    not_before: float


class _Ready(Protocol):
    """Files that are ready to be tried, in their order."""

    def __len__(self) -> int: ...

    def push(self, path: str) -> None: ...

    def pop(self) -> str:
        """Return the first; only when there is one."""

    def precedes(self, scanned_to: str) -> bool:
        """Return whether the first comes before everything that a scan, now at this path, may still find."""


class _Arrival:
    """In order of arrival, those of our share first. No heap: there may be many, and each is handled
    twice."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._ours: deque[str] = deque()
        self._others: deque[str] = deque()

    def __len__(self) -> int:
        return len(self._ours) + len(self._others)

    def push(self, path: str) -> None:
        share = self._share
        is_ours = share.of == 1 or crc32(os.fsencode(path)) % share.of == share.number
        (self._ours if is_ours else self._others).append(path)

    def pop(self) -> str:
        return (self._ours or self._others).popleft()

    def precedes(self, scanned_to: str) -> bool:
        return bool(self._ours)


class _Natural:
    """In the natural order of the paths."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[bytes, ...], str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, path: str) -> None:
        heappush(self._heap, (path_key(path), path))

    def pop(self) -> str:
        return heappop(self._heap)[1]

    def precedes(self, scanned_to: str) -> bool:
        return self._heap[0][0] <= path_key(scanned_to)


class Candidates:
    """ordered: by the natural order of the paths; else as they came, and those of our share first."""

    def __init__(self, clock: Clock, *, ordered: bool = False, share: Share = WHOLE) -> None:
        self._clock = clock
        self._ready: _Ready = _Natural() if ordered else _Arrival(share)
        self._waiting: set[str] = set()  # the content of _ready
        self._refused: dict[str, Refusal] = {}
        self._vain: dict[str, _Vain] = {}
        self._later: list[tuple[float, str]] = []
        self._held: set[str] = set()
        self._unseen: set[str] = set()

    def __len__(self) -> int:
        """Return how many files are ready to be tried."""
        return len(self._ready)

    @property
    def have_refused(self) -> bool:
        """Return whether a refused file is remembered."""
        return bool(self._refused)

    def touch_all(self) -> None:
        """Something about any of the files that were refused may have changed."""
        for path in self._refused:
            self.offer(path)

    def refused(self, path: str) -> Refusal | None:
        """Why this file was refused when it was last tried; None when it was not."""
        return self._refused.get(path)

    def offer(self, path: str) -> None:
        """Something has been written to this file, or it is new: try it, unless it was tried just now."""
        vain = self._vain.get(path) if self._vain else None
        if vain is None or vain.not_before <= self._clock.now():
            self._make_ready(path)
        else:
            heappush(self._later, (vain.not_before, path))

    def touch(self, path: str) -> None:
        """Something about this file has changed: look again, if it was refused before."""
        if path in self._refused:
            self.offer(path)

    def seen(self, entries: Iterable[tuple[str, float]]) -> None:
        """A scan came by these files, each with the time at which it is due."""
        now = self._clock.now()
        for path, due in entries:
            self._unseen.discard(path)
            if due <= now:
                self.offer(path)
                continue
            known = self._refused.get(path)
            if known is None or known.until != due:
                self.refuse(path, Refusal(Reason.NOT_DUE, due))

    def begin_scan(self) -> None:
        """All files are going to be seen() from now on."""
        self._unseen = set(self._refused)

    def end_scan(self) -> None:
        """All have been: forget those that have not."""
        for path in self._unseen:
            self._forget(path)
        self._unseen.clear()

    def take(self) -> str | None:
        """Return the next file to try; None when there is none. It counts as held until refuse() or
        done()."""
        if self._later:
            self._take_up(self._clock.now())
        if not self._ready:
            return None
        path = self._ready.pop()
        self._waiting.discard(path)
        self._held.add(path)
        return path

    def _take_up(self, now: float) -> None:
        """Make the files ready that rested until *now*."""
        while self._later and self._later[0][0] <= now:
            at, path = heappop(self._later)
            refusal, vain = self._refused.get(path), self._vain.get(path)
            # A file that was refused again since then has another entry, or waits for a change.
            if (refusal and refusal.until == at) or (vain and vain.not_before == at):
                self._make_ready(path)

    def refuse(self, path: str, refusal: Refusal) -> None:
        """The file was tried in vain, or given back."""
        if refusal.reason is Reason.GONE:
            self.done(path)
            return
        self._held.discard(path)
        self._unseen.discard(path)
        self._refused[path] = refusal
        if refusal.reason is Reason.LOCKED:
            tries = self._vain[path].tries if path in self._vain else 0
            delay = min(FIRST_DELAY * 2**tries, LONGEST_DELAY)
            self._vain[path] = _Vain(min(tries + 1, MOST_TRIES), self._clock.now() + delay)
        else:
            self._vain.pop(path, None)
        if refusal.until < math.inf:
            heappush(self._later, (refusal.until, path))

    def leave(self, path: str) -> None:
        """The file was tried in vain, for no known reason: try again after a growing delay."""
        self._held.discard(path)
        tries = self._vain[path].tries if path in self._vain else 0
        again = self._clock.now() + min(FIRST_DELAY * 2**tries, LONGEST_LEFT)
        self._vain[path] = _Vain(min(tries + 1, MOST_TRIES), again)
        self._refused[path] = Refusal(Reason.LOCKED, again)
        heappush(self._later, (again, path))

    def done(self, path: str) -> None:
        """The file is gone."""
        self._held.discard(path)
        self._forget(path)

    def next_time(self) -> float:
        """Return when the next resting file is to be tried, epoch seconds; infinity when none rests."""
        return self._later[0][0] if self._later else math.inf

    def precede(self, scanned_to: str) -> bool:
        """Return whether the next file of take() comes before everything that a scan at *scanned_to* may
        still find. Only when there is one."""
        return self._ready.precedes(scanned_to)

    def _make_ready(self, path: str) -> None:
        if path not in self._waiting and path not in self._held:
            self._waiting.add(path)
            self._ready.push(path)

    def _forget(self, path: str) -> None:
        if self._refused:
            self._refused.pop(path, None)
            self._vain.pop(path, None)
