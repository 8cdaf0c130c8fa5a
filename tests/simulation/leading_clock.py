"""leading_clock: when the clock of the leading scheduler showed a time, although clocks are set.

Comes from:  ``due_times``, with the Story of a run.
Goes to:     ``due_times``.
Thread:      any; pure.

The leader's clock is set by a jump, and when another process takes over whose clock differs. A time that is
skipped is *passed* when the clock is set; a time that is shown twice is passed the first time: nothing is
called twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tests.simulation.schedules import Led

TOLERANCE = 0.002


class LeadingClock:
    """led: by how much the clock was ahead, and when. *second* is a second of the world, *shown* what the
    clock showed then."""

    def __init__(self, led: Sequence[Led]) -> None:
        self._led = led or [Led(0.0, 0.0, 0.0)]
        self._set = list(pairwise(self._led))
        self.shifts = [(old.last, new.first) for old, new in self._set]
        """When the clock was set: after the first of the two seconds, and before the second one."""
        self.backwards = {(old.last, new.first) for old, new in self._set if new.skew < old.skew}

    def passed(self, shown: float) -> float:
        """Return the second in which the clock showed *shown*, or skipped it; within a shift, its end."""
        for old, new in self._set:
            if shown <= old.last + old.skew:
                return shown - old.skew
            if shown <= new.first + max(old.skew, new.skew):
                return new.first
        return shown - self._led[-1].skew

    def is_repeated(self, shown: float) -> bool:
        """Return whether the clock may have shown *shown* more than once, or never."""
        return any(
            new.first + min(old.skew, new.skew) - TOLERANCE
            <= shown
            <= old.last + max(old.skew, new.skew) + TOLERANCE
            for old, new in self._set
        )

    def span(self, begin: float, end: float) -> tuple[float, float]:
        """Return the earliest and the latest that the clock may have shown from second *begin* to *end*."""
        shown = []
        for number, each in enumerate(self._led):
            first = self.shifts[number - 1][0] if number else begin
            last = self.shifts[number][1] if number < len(self.shifts) else end
            if first <= end and begin <= last:
                shown += [max(first, begin) + each.skew, min(last, end) + each.skew]
        return min(shown), max(shown)
