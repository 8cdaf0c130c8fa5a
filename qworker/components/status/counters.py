"""Counters: the numbers of runs by task and kind of end, and their durations; kept only if exposed.

Comes from:  Settler, for every request that ends.
Goes to:     ``metrics.py``.
Thread:      any; under one lock, which is never held while calling out.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

MAX_NAMES = 200
"""Maximum number of tasks counted separately, because each needs a time series for every kind of end."""
OTHERS = "other"
BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Upper bounds of the histogram, seconds."""


class EndedRun(NamedTuple):
    """A request that ended. how: the kind of end. seconds: the duration of its run; None if unknown."""

    name: str
    how: str
    seconds: float | None = None


class Histogram(NamedTuple):
    """counts: the number of runs up to each bound of BUCKETS. total: of all runs. seconds: their sum."""

    counts: list[int]
    total: int
    seconds: float


class Counters:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[tuple[str, str], int] = {}  # under _lock, as all below
        self._names: set[str] = set()
        self._buckets = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def count(self, runs: Iterable[EndedRun]) -> None:
        """Count runs that ended."""
        with self._lock:
            for name, how, seconds in runs:
                if name not in self._names:
                    if len(self._names) < MAX_NAMES:
                        self._names.add(name)
                    else:
                        name = OTHERS
                self._ends[name, how] = self._ends.get((name, how), 0) + 1
                if seconds is not None:
                    self._buckets[bisect_left(BUCKETS, seconds)] += 1
                    self._seconds += seconds

    def ends(self) -> dict[tuple[str, str], int]:
        """Return the number of runs for each (task name, end)."""
        with self._lock:
            return dict(self._ends)

    def runtimes(self) -> Histogram:
        """Return the histogram of known durations."""
        with self._lock:
            counts = list(accumulate(self._buckets))
            return Histogram(counts[:-1], counts[-1], self._seconds)
