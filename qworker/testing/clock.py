"""FakeClock: a clock that only moves when a test advances it.

Comes from:  tests, which pass it as a `Clock`.
Goes to:     the code under test.
Thread:      any; sleep() moves the time and returns at once.
"""

from __future__ import annotations

import threading

START = 1_700_000_000.0  # 2023-11-14T22:13:20+00:00


class FakeClock:
    """A `qworker.clock.Clock` that stands still. ``slept`` lists all sleeps, in seconds."""

    def __init__(self, now: float = START, monotonic: float = 1000.0) -> None:
        self._now = now
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self.slept: list[float] = []

    def now(self) -> float:
        """Return the wall clock time in epoch seconds."""
        return self._now

    def monotonic(self) -> float:
        """Return the monotonic time in seconds."""
        return self._monotonic

    def uptime(self) -> float:
        """Return monotonic(): the fake machine is never suspended."""
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        """Advance the time by `seconds` and return at once."""
        self.slept.append(seconds)
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Advance both clocks by `seconds`, which must not be negative."""
        if seconds < 0:
            raise ValueError("time does not go back; use jump() to set the wall clock")
        with self._lock:
            self._now += seconds
            self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward (back, if negative) by `seconds`. The monotonic clock does not
        change."""
        with self._lock:
            self._now += seconds
