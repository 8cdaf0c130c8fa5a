"""RuntimeEstimates: the expected duration of each task, learned from its runs.

Comes from:  the pool, with each ended run.
Goes to:     the pool's frames, the mediator and the fetch window, which ask how long a task will take.
Thread:      written by the pool's thread, read by any.
"""

from __future__ import annotations

WEIGHT = 0.2
"""Weight of the newest run in the moving average of a task."""
MEAN_UP, MEAN_DOWN = 0.2, 0.02
"""Weights of the newest run in the overall average: it rises quickly and falls slowly, because fetching too
much is worse than fetching too often."""
OVERHEAD = 0.000025
"""Overhead of a run in seconds."""
MAX_NAMES = 10_000


class RuntimeEstimates:
    def __init__(self) -> None:
        self._by_name: dict[str, float] = {}  # pool thread
        self.mean = 0.0
        """Moving average over all runs, seconds; 0.0 before the first."""
        self.latest = 0.0
        """Seconds of the run that ended last; 0.0 before the first."""

    def seconds(self, name: str) -> float | None:
        """Return the expected seconds of the next run of *name*; None if it has never run here."""
        return self._by_name.get(name)

    def learn(self, name: str, runtime: float) -> None:
        """Record a run of *runtime* seconds. A much longer run than expected raises the estimate at once."""
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
