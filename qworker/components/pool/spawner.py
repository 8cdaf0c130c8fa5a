"""Spawner: starts the children of the process pool.

Comes from:  ProcessPool, which requests children and receives notices of their deaths.
Goes to:     the zygote; for other start methods see ``billiard_spawner.py``.
Thread:      pool thread.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from qworker.components.pool.zygote import Zygote

Notice = tuple[str, int, int]
"""``("up", index, pid)``, ``("exit", pid, wait status)``, or ``("gone", number, wait status)``: the process
that forks children has died with all of them; more can be started."""


class Spawner(Protocol):
    """The interface that ProcessPool uses."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when receive() has notices."""

    def spawn(self, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> None:
        """Start a child with these descriptors and settings. Raises OSError if that is impossible now."""

    def receive(self) -> list[Notice]:
        """Return new notices. Raises EOFError if no more children can be started."""

    def living(self) -> int:
        """Return how many children are alive."""

    def close(self) -> None:
        """Kill the remaining children. Safe to call twice."""


class ZygoteSpawner:
    """Children forked by the zygote."""

    def __init__(self, zygote: Zygote) -> None:
        self._zygote = zygote
        self._living: set[int] = set()

    def fileno(self) -> int:
        return self._zygote.fileno()

    def spawn(self, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> None:
        self._zygote.spawn(jobs, tokens, orders, settings)

    def receive(self) -> list[Notice]:
        notices = self._zygote.receive()
        for kind, number, value in notices:
            if kind == "up":
                self._living.add(value)
            elif kind == "gone":
                self._reap_all()
            else:
                self._living.discard(number)
        return notices

    def _reap_all(self) -> None:
        """Forget the children of a dead zygote; kill them first unless this is Linux, which has done so."""
        for pid in self._living if sys.platform != "linux" else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._living.clear()

    def living(self) -> int:
        return len(self._living)

    def close(self) -> None:
        self._zygote.close()
