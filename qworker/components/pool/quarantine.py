"""Quarantine: requests that have met with so many deaths that they are suspected of them. They run one at a
time.

Comes from:  the pool, which was given them like any others.
Goes to:     back to it, one at a time: a process pool runs it in a child that has nothing else.
Thread:      whoever holds the lock of the pool.

Whatever ran beside a task that kills its worker has met with the same deaths. Tried apart from each other
the others come to their ends, and only that task meets with yet another death. Normal work goes on meanwhile,
in the other processes. Nothing waits here for ever: a trial is over after TRIAL_SECONDS, however long the
task runs on, and where there is but one process the others have it for as long after each trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from qworker.components.request import Request

TRIAL_SECONDS = 30.0
"""For so long a suspect runs apart from other suspects, and waits for a process that has nothing else."""


class Quarantine:
    """places: how many tasks the pool runs at once."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: deque[Request] = deque()
        self.tried: Request | None = None
        """The one that runs."""
        self._began = 0.0
        self._rests_until = 0.0
        self._asked = 0.0
        """Since when the first in the line could begin."""

    def __bool__(self) -> bool:
        return self.tried is not None or bool(self._waiting)

    def add(self, request: Request, now: float) -> None:
        """Put *request* at the end of the line. now: monotonic seconds, as everywhere here."""
        if not self:
            self._asked = now
        self._waiting.append(request)

    def recall(self) -> list[Request]:
        """Take back what waits."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def next(self, runs: Callable[[Request], bool], now: float) -> Request | None:
        """The one to be tried next; None when that is not yet. runs: whether a request is still running."""
        if self.tried is not None and (now >= self._began + TRIAL_SECONDS or not runs(self.tried)):
            self.tried = None
            self._asked = now
            if self._places == 1:
                self._rests_until = now + (now - self._began)
        if self.tried is not None or not self._waiting or now < self._rests_until:
            self._asked = now
            return None
        return self._waiting[0]

    def is_patient(self, now: float) -> bool:
        """Whether the next one still waits for a process that has nothing else."""
        return now < self._asked + TRIAL_SECONDS

    def begin(self, now: float) -> None:
        """The next one begins."""
        self.tried, self._began = self._waiting.popleft(), now
