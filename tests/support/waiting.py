"""Waiting for conditions, as in the contract suite that we ship."""

from __future__ import annotations

import select
from typing import Protocol

from qworker.testing.contract.waiting import PATIENCE, until

__all__ = ["PATIENCE", "readable", "until"]


class _HasFile(Protocol):
    def fileno(self) -> int: ...


def readable(*files: int | _HasFile, seconds: float = PATIENCE) -> list[int]:
    """The descriptors of those *files* that are readable, as soon as one is; [] after a timeout.

    It uses poll(), as a process that has run many tests has descriptors too large for select().
    """
    waiting = select.poll()
    for file in files:
        waiting.register(file, select.POLLIN)
    return [number for number, _ in waiting.poll(seconds * 1000)]
