"""Waiting for what others do: as the suite does that we ship."""

from __future__ import annotations

import select
from typing import Protocol

from qworker.testing.contract.waiting import PATIENCE, until

__all__ = ["PATIENCE", "readable", "until"]


class _HasFile(Protocol):
    def fileno(self) -> int: ...


def readable(*files: int | _HasFile, seconds: float = PATIENCE) -> list[int]:
    """The numbers of those of *files* that can be read, as soon as one can; [] when none can in time.

    By poll: a process that has run many tests opens files with numbers that select() refuses.
    """
    waiting = select.poll()
    for file in files:
        waiting.register(file, select.POLLIN)
    return [number for number, _ in waiting.poll(seconds * 1000)]
