"""Runtime estimates: how long a task of each name takes, learned from its runs.

Comes from:  the pool, after each run.
Goes to:     the pool (how much to put into a frame) and the Listener (how much to fetch ahead).
Thread:      written by the pool thread, read by any.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Of the newest run, in the moving average of its name."""
MEAN_UP, MEAN_DOWN = 0.2, 0.02
"""Of the newest run, in the average of all: it rises quickly and falls slowly, since to fetch too much is
worse than to fetch too often."""
OVERHEAD = 0.000025
"""Seconds that a run costs besides the task's own code."""
MAX_NAMES = 10_000


class RuntimeEstimates:
    def __init__(self) -> None:
        self._by_name: dict[str, float] = {}  # pool thread
        self.mean = 0.0
        """Moving average over all runs, seconds; 0.0 before the first."""
        self.latest = 0.0
        """Seconds of the run that ended last; 0.0 before the first."""

    def seconds(self, name: str) -> float | None:
        """How long the next run of *name* will take; None when it has never run here."""
        return self._by_name.get(name)

    def learn(self, name: str, runtime: float) -> None:
        """A run took *runtime* seconds. One much longer than expected counts at once: caution first."""
        runtime += OVERHEAD
        self.latest = runtime
        known = self._by_name.get(name)
        if known is None:
            if len(self._by_name) >= MAX_NAMES:
                self._by_name.clear()
            known = runtime
        self._by_name[name] = max(known + WEIGHT * (runtime - known), runtime / 4)
        weight = MEAN_UP if runtime > self.mean else MEAN_DOWN
        self.mean = self.mean + weight * (runtime - self.mean) if self.mean else runtime
