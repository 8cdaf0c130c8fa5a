"""Caution: tells the trouble of one entry from that of all.

Comes from:  the service, with the entries that are to be called.
Goes to:     back to it: which of them are tried together.
Thread:      beat.

When a broker or a store does not answer, nobody knows at first whom that is about: a queue that cannot be
declared is refused in the same way as a server that is away. So what has failed together is tried again in
smaller parts, and what has failed alone is tried apart from the others, one at a time, after a pause that
grows. As long as nothing succeeds, the next try is left to the next turn: each may take as long as a server
that does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 1.0
"""Seconds."""
SHARE = 4
"""A part has a quarter of what has failed together."""
TRUST = 12
"""After a success so many failures are taken for those of entries: as many as it takes to find one of a
thousand."""


class Named(Protocol):
    """What belongs to an entry."""

    @property
    def name(self) -> str:
        """The entry's name."""
        ...


N = TypeVar("N", bound=Named)


class Caution:
    """most: how many are tried together."""

    def __init__(self, most: int) -> None:
        self._limit = most
        self.most = most
        self._trust = 0
        self._failures: dict[str, int] = {}
        self._again_at: dict[str, float] = {}
        """When those that have failed alone are tried again: monotonic seconds, as every *now* here."""
        self._apart_at = 0.0
        """When the next of them is."""

    def parts(self, every: Sequence[N], now: float) -> Iterator[list[N]]:
        """Yield those of *every* that are tried together, part by part; then those that have failed alone,
        entry by entry, unless their pause lasts, until one fails again."""
        self._trust = 0
        clean = [each for each in every if each.name not in self._failures]
        while clean:
            some, clean = clean[: self.most], clean[self.most :]
            yield some
        apart: dict[str, list[N]] = {}
        for each in every if now >= self._apart_at else ():
            if now >= self._again_at.get(each.name, now + 1):
                apart.setdefault(each.name, []).append(each)
        for name in sorted(apart, key=lambda name: self._again_at.get(name, 0.0)):
            yield apart[name]
            if name in self._failures:
                return

    def failed(self, names: frozenset[str], now: float) -> bool:
        """Note that what was tried together has failed; tell whether that is the trouble of entries among
        them: of one that has failed alone before, or when others have just succeeded."""
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
        """Note that *names* were tried with success. When one of them has failed alone before, so may the
        others have for no reason of their own."""
        if not self._failures.keys().isdisjoint(names):
            self._failures.clear()
            self._again_at.clear()
            self._apart_at = 0.0
        self.most = min(self._limit, self.most * SHARE)
        self._trust = TRUST

    def forget(self, name: str) -> None:
        """It is another entry now."""
        self._failures.pop(name, None)
        self._again_at.pop(name, None)

    def pause(self, name: str, now: float) -> float:
        """Seconds until *name* is to be tried again; 0 for one that has not failed alone."""
        return max(0.0, max(self._apart_at, self._again_at[name]) - now) if name in self._again_at else 0.0

    @property
    def waiting(self) -> bool:
        """Whether any has failed alone."""
        return bool(self._failures)
