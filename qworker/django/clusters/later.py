"""Later: a part of a worker that is loaded when it starts, and not before.

Comes from:  ``cluster.py``, for what a cluster has beside other workers: schedules, the limit of successes.
Goes to:     the part, once the broker has answered.
Thread:      main; that of who asks for problems.

What the first task does not need does not keep it waiting: it has been claimed when these modules are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qworker.components.component import Component


class Later(Component):
    """name: what the log calls it. make: loads the part, and makes it."""

    def __init__(self, name: str, make: Callable[[], Component]) -> None:
        self.name = name
        self._make = make
        self._part: Component | None = None
        self._ended = False

    def start(self) -> None:
        if self._part is None and not self._ended:
            self._part = self._make()
            self._part.start()

    def quiet(self) -> None:
        if self._part is not None:
            self._part.quiet()
        self._ended = True

    def stop(self, deadline: float = 0.0) -> None:
        self._ended = True
        if self._part is not None:
            self._part.stop(deadline)

    def problems(self) -> Sequence[str]:
        return () if self._part is None else self._part.problems()

    def join(self, seconds: float) -> bool:
        return self._part is None or self._part.join(seconds)
