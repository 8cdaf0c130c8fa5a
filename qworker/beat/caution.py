"""Caution: distinguishes errors of single entries from general ones.

Comes from:  the service, with the entries to call.
Goes to:     the service: which of them to try together.
Thread:      beat.

An error does not say whether it concerns one entry: a queue that cannot be declared raises the same error as
an unavailable server. So entries that failed together are tried again in smaller parts, and an entry that
failed alone is tried separately, after a growing pause. As long as nothing succeeds, there is one attempt in
each turn, because an attempt may take as long as a server's timeout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds."""
SHARE = 4
"""A part is a quarter of the entries that failed together."""
TRUST = 12
"""After a success, this many failures are attributed to entries: enough to find one among a thousand."""


class Named(Protocol):
    """Anything that belongs to an entry."""

    @property
    def name(self) -> str:
        """The entry's name."""
        ...


N = TypeVar("N", bound=Named)


class Caution:
    """most: the maximum number of entries tried together."""

    def __init__(self, most: int) -> None:
        self._limit = most
        self.most = most
        self._trust = 0
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        """When entries that failed alone are tried again: monotonic seconds, like every *now* here."""
        self._apart_at = 0.0
        """When any of them may be tried next."""

    def parts(self, every: Sequence[N], now: float) -> Iterator[list[N]]:
        """Yield the parts of *every* to try together. Then yield those that failed alone and are not pausing,
        one by one, until one fails again."""
        self._trust = 0
        clean = [each for each in every if each.name not in self._failures]
        while clean:
            some, clean = clean[: self.most], clean[self.most :]
            yield some
        by_name: dict[str, list[N]] = {}
        for each in every if now >= self._apart_at else ():
            if now >= self._again_at.get(each.name, now + 1):
                by_name.setdefault(each.name, []).append(each)
        for name in sorted(by_name, key=lambda name: self._again_at.get(name, 0.0)):
            yield by_name[name]
            if name in self._failures:
                return

    def failed(self, names: frozenset[str], now: float) -> bool:
        """Record a failure of entries tried together. Return True if these entries caused it: the only one
        has failed alone before, or others have just succeeded."""
        self._trust -= 1
        if len(names) > 1:
            self.most = max(1, len(names) // SHARE)
            return self._trust > 0
        (name,) = names
        count = self._failures[name] = self._failures.get(name, 0) + 1
        self._apart_at = now + SHORTEST_PAUSE
        self._again_at[name] = now + min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** (count - 1))
        return count > 1 or self._trust > 0

    def succeeded(self, names: frozenset[str]) -> None:
        """Record that *names* succeeded. If one of them had failed alone, the reason was probably general:
        all are tried together again."""
        if not self._failures.keys().isdisjoint(names):
            self._failures.clear()
            self._again_at.clear()
            self._apart_at = 0.0
        self.most = min(self._limit, self.most * SHARE)
        self._trust = TRUST

    def forget(self, name: str) -> None:
        """Forget the failures of an entry that was replaced."""
        self._failures.pop(name, None)
        self._again_at.pop(name, None)

    def pause(self, name: str, now: float) -> float:
        """Return the seconds until *name* is tried again; 0 unless it failed alone."""
        return max(0.0, max(self._apart_at, self._again_at[name]) - now) if name in self._again_at else 0.0

    @property
    def waiting(self) -> bool:
        """Return whether any entry has failed alone."""
        return bool(self._failures)
