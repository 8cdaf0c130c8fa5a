"""stores: the stores of a world, which need no server; each node opens them with its own clock.

Comes from:  ``run``, with the name of a kind of stores.
Goes to:     the apps of the nodes.
Thread:      the world's.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from kombu.transport.memory import Channel, Transport

from qworker.backends import open_backend
from qworker.backends.keyvalue.joins import JOIN_PREFIX, KeyValueJoins
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.backends.rpc.backend import Reading, ReplyQueue, RpcBackend
from qworker.errors import NotSupported
from qworker.testing import MemoryStore
from qworker.testing.memory_queues import MemoryQueues
from qworker.transports.lease import Claim
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.simulation.seams import BACKEND, BROKER, JOINS, LETTERS, Process, watch
from tests.simulation.waiting import LOOK
from tests.simulation.world import LEASE_SECONDS, Actor, Clock, Time
from tests.support.kombu_brokers import kombu_broker

STORES = {
    "memory": ("memory", "memory"),
    "sqlite": ("sqlite", "sqlite"),
    "sqlite+other": ("sqlite", "other"),
    "sqlite+memory": ("sqlite", "memory"),
    "sqlite+files": ("sqlite", "files"),
    "memory+sqlite": ("memory", "sqlite"),
    "memory+disabled": ("memory", "disabled"),
    "kombu+memory": ("kombu", "memory"),
    "kombu+rpc": ("kombu", "rpc"),
    "django": ("sqlite", "sqlite"),
}
"""Stores of messages and results. "rpc": by messages to the caller. "other" is another file; "django" a
Django project's database."""
LASTING = frozenset({"owner", "highest"})
"""Tables of the embedded stores with rows for each live worker."""


class Stores:
    """The stores that all nodes of a world share. directory: for files."""

    def __init__(self, kind: str, directory: Path, time: Time) -> None:
        self._messages, self._results = STORES[kind]
        self.directory = directory
        self._time = time
        self._broker: MemoryStore | None = None
        self._backend: MemoryBackend | None = None
        self.complain: Callable[[str], None] = lambda text: None
        self.opened: list[Any] = []
        self._empty()  # other tests may have left messages

    def broker(self, process: Process, clock: Clock) -> Any:
        uptime = Clock(self._time).uptime
        made: Any
        if self._messages == "memory":
            made = MemoryStore(
                clock, lease_seconds=LEASE_SECONDS, uptime=uptime, shared_with=self._broker, keeps_failed=True
            )
            self._broker = self._broker or made
            self._observe(made, made)
            watch(process, "broker", made, BROKER)
        elif self._messages == "kombu":
            made = kombu_broker("memory://", known=("celery", "far"), poll=0.0, clock=clock)
            process.on_death.append(made.consumer.deregister)  # like a server when a connection ends
            for side in (made.sender, made.consumer, made.admin):
                watch(process, "broker", side, BROKER)
        else:
            made = SQLiteBroker(
                f"sqlite:///{self.directory}/q.db",
                synchronous="OFF",
                lease_seconds=LEASE_SECONDS,
                clock=clock,
                uptime=uptime,
            )
            self._observe(made.consumer, made.admin)
            for side in (made.sender, made.consumer, made.admin):
                watch(process, "broker", side, BROKER)
        for kind, letters in made.letters.items():
            watch(process, "broker", letters, LETTERS, f"{kind}.")
        self.opened.append(made)
        return made

    def _observe(self, consumer: Any, admin: Any) -> None:
        """Complain when *consumer* leaves a message that is more urgent than one that it takes."""
        lease = consumer.lease

        def observed(*given: Any, **named: Any) -> Claim:
            claim: Claim = lease(*given, **named)
            taken = sorted(
                (each for each in claim.messages if each.due is None), key=lambda each: -each.priority
            )
            for queue, least in {each.queue: each.priority for each in taken}.items():
                left = max((each.priority for each in admin.peek(queue, "ready", 20)), default=least)
                if left > least:
                    self.complain(f"{queue}: priority {least} was taken before {left}")
            return claim

        consumer.lease = observed

    def backend(self, process: Process, clock: Clock, conf: Any) -> Any:
        url = {
            "memory": "cache+memory://",
            "sqlite": f"sqlite:///{self.directory}/q.db",
            "other": f"sqlite:///{self.directory}/results.db",
            "files": f"file://{self.directory}/results",
            "disabled": "disabled://",
            "rpc": "rpc://",
        }[self._results]
        made = open_backend(url, conf, clock)
        self.opened.append(made)
        if isinstance(made, RpcBackend):
            watch(process, "results", made, ("store", "store_rows"))
            watch(process, "broker", made, ("reply_to",))
            made._replies._start = partial(self._read, process.name, made._replies)  # type: ignore[method-assign]
            return made
        if isinstance(made, MemoryBackend):
            if self._backend is not None:
                made._lock, made._values = self._backend._lock, self._backend._values
            self._backend = self._backend or made
        watch(process, "results", made, BACKEND)
        if self._results != "disabled":
            joins = made.joins
            watch(process, "results", joins, JOINS, "join.")
            type_with_joins(made, joins)
        return made

    def _read(self, node: str, replies: ReplyQueue, reading: Reading) -> None:
        """Read a reply queue in the world's time."""

        def step() -> float:
            while replies.step(reading, 0.0):
                pass
            return LOOK

        self._time.actors.append(Actor(node, "replies", step))

    @property
    def disabled(self) -> bool:
        """Whether no results are stored."""
        return self._results == "disabled"

    def snapshot(self) -> Callable[[], None]:
        """Save the content of the stores; return a function that restores it."""
        if self._messages == "kombu":  # its server does not crash
            return lambda: None
        queues = None if self._broker is None else deepcopy(self._broker._building.queues)
        values = None if self._backend is None else dict(self._backend._values)
        copies = []
        for file in self.directory.glob("*.db"):
            copies.append((file, copy := sqlite3.connect(":memory:")))
            with closing(sqlite3.connect(file)) as connection:
                connection.backup(copy)
        results = self.directory / "results"
        kept = Path(f"{results}.kept")
        shutil.rmtree(kept, ignore_errors=True)
        if results.exists():
            shutil.copytree(results, kept)

        def restore() -> None:
            if self._broker is not None and queues is not None:
                self._broker._building.queues = deepcopy(queues)  # it may be restored again
            if self._backend is not None and values is not None:
                self._backend._values.clear()
                self._backend._values.update(values)
            for file, copy in copies:
                with closing(sqlite3.connect(file)) as connection:
                    copy.backup(connection)
            if results.exists():
                shutil.rmtree(results)
                if kept.exists():
                    shutil.copytree(kept, results)

        return restore

    def lose(self) -> None:
        """Lose everything, as if the stores had been made anew. Only numbers of consumers and revocations go
        on, as on a machine with one clock: here, where clocks differ by whole seconds, another consumer might
        get a number that is in use."""
        if self._broker is not None:
            queues = self._broker._building.queues
            self._broker._building.queues = MemoryQueues(last=queues.last)
        if self._backend is not None:
            self._backend._values.clear()
        self._empty()
        for file in self.directory.glob("*.db"):
            with closing(sqlite3.connect(file)) as connection, connection:
                for (name,) in connection.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence'"
                ).fetchall():
                    connection.execute(f"DELETE FROM {name}")
        for path in (self.directory / "results").rglob("[!.]*"):
            if path.is_file():
                path.unlink()

    def joins(self, backend: Any) -> list[str]:
        """Return the ids of the open joins of *backend*; [] if it has none."""
        try:
            joins = backend.joins
        except NotSupported:
            return []
        if isinstance(joins, KeyValueJoins):
            states = map(joins._state, joins._keys.list(JOIN_PREFIX))
            return [state.id for state in states if state is not None]
        file = self.directory / ("results.db" if self._results == "other" else "q.db")
        with closing(sqlite3.connect(file)) as connection:
            return [id for (id,) in connection.execute("SELECT id FROM joins WHERE remaining >= 0")]

    def left(self) -> dict[str, int]:
        """Return how much is in the stores, by kind, without live workers."""
        found: dict[str, int] = {}
        if self._broker is not None:
            queues = self._broker._building.queues
            for kind in ("messages", "dead", "failed", "revoked", "results"):
                found[kind] = len(getattr(queues, kind))
        if self._backend is not None:
            for key in self._backend._values:
                kind = f"keys {key.rstrip('0123456789abcdef-.')}"
                found[kind] = found.get(kind, 0) + 1
        for file in self.directory.glob("*.db"):
            with sqlite3.connect(file) as connection:
                tables = [
                    name
                    for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
                ]
                for name in tables:
                    if not name.startswith("sqlite_") and name not in LASTING:
                        found[f"{file.stem} {name}"] = connection.execute(
                            f"SELECT count(*) FROM {name}"
                        ).fetchone()[0]
        files = (self.directory / "results").rglob("*")
        found["files"] = sum(path.is_file() and not path.name.startswith(".lock-") for path in files)
        return {kind: count for kind, count in found.items() if count}

    def close(self) -> None:
        for each in self.opened:
            each.__dict__.pop("_watcher", None)
            try:
                each.close()
            except BaseException:  # noqa: BLE001 - the node may have been killed
                pass
        self._empty()  # closing a broker returns messages

    def _empty(self) -> None:
        """Clear the queues of kombu's memory transport, which all tests of this process share."""
        if self._messages == "kombu":
            Channel.queues.clear()
            Transport.global_state.clear()


def type_with_joins(backend: Any, joins: Any) -> None:
    """Make *backend* always return the same *joins*."""
    kind = type(backend)
    backend.__class__ = type(kind.__name__, (kind,), {"joins": property(lambda self: joins)})
