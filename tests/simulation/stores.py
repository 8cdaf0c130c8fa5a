"""The stores of a world: those that need no server, opened anew by each node on its own clock.

Comes from:  ``run``, with the name of a kind of stores.
Goes to:     the apps of the nodes.
Thread:      the world's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qworker.backends import open_backend
from qworker.backends.memory import MemoryBackend
from qworker.testing import MemoryStore
from qworker.transports.sqlite.broker import SQLiteBroker
from tests.simulation.seams import BACKEND, BROKER, FAILED, JOINS, Process, watch
from tests.simulation.world import Clock, Time

STORES = {
    "memory": ("memory", "memory"),
    "sqlite": ("sqlite", "sqlite"),
    "sqlite+other": ("sqlite", "other"),
    "sqlite+memory": ("sqlite", "memory"),
    "sqlite+files": ("sqlite", "files"),
    "memory+sqlite": ("memory", "sqlite"),
}
"""Of messages and of results. "other" is another file."""
LEASE_SECONDS = 4.0


class Stores:
    """What all nodes of a world share. directory: for files."""

    def __init__(self, kind: str, directory: Path, time: Time) -> None:
        self._messages, self._results = STORES[kind]
        self._directory = directory
        self._time = time
        self._broker: MemoryStore | None = None
        self._backend: MemoryBackend | None = None
        self.opened: list[Any] = []

    def broker(self, process: Process, clock: Clock) -> Any:
        uptime = Clock(self._time).uptime
        made: Any
        if self._messages == "memory":
            made = MemoryStore(
                clock, lease_seconds=LEASE_SECONDS, uptime=uptime, beside=self._broker, keeps_failed=True
            )
            self._broker = self._broker or made
            watch(process, "broker", made, BROKER)
        else:
            made = SQLiteBroker(
                f"sqlite:///{self._directory}/q.db",
                synchronous="OFF",
                lease_seconds=LEASE_SECONDS,
                clock=clock,
                uptime=uptime,
            )
            watch(process, "broker", made.sender, BROKER)
            watch(process, "broker", made.consumer, BROKER)
            watch(process, "broker", made.admin, BROKER)
        watch(process, "broker", made.failed, FAILED, "failed.")
        self.opened.append(made)
        return made

    def backend(self, process: Process, clock: Clock, conf: Any) -> Any:
        url = {
            "memory": "cache+memory://",
            "sqlite": f"sqlite:///{self._directory}/q.db",
            "other": f"sqlite:///{self._directory}/results.db",
            "files": f"file://{self._directory}/results",
        }[self._results]
        made = open_backend(url, conf, clock)
        if isinstance(made, MemoryBackend):
            if self._backend is not None:
                made._lock, made._values = self._backend._lock, self._backend._values
            self._backend = self._backend or made
        watch(process, "results", made, BACKEND)
        joins = made.joins
        watch(process, "results", joins, JOINS, "join.")
        type_with_joins(made, joins)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for each in self.opened:
            each.__dict__.pop("_watcher", None)
            try:
                each.close()
            except BaseException:  # noqa: BLE001 - of a node that was killed
                pass


def type_with_joins(backend: Any, joins: Any) -> None:
    """Have *backend* answer with these *joins*, the same each time."""
    kind = type(backend)
    backend.__class__ = type(kind.__name__, (kind,), {"joins": property(lambda self: joins)})
