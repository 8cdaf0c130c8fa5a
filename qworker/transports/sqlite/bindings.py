"""Queues and bindings of the embedded broker, for kombu: who gets what is published to an exchange.

Comes from:  ``transports/kombu/channel.py``. qworker itself names its queues and needs none of this.
Goes to:     the tables ``binding``, ``queue`` and ``message``.
Thread:      any, with the publishing connection.

A queue that is to go with its user (of events, of replies) is kept with the generation of each consumer that
declared it; when the last of them deregisters or is found dead, the queue goes, with its bindings and
whatever it holds.
"""

from __future__ import annotations

import sqlite3

from qworker.transports.sqlite import DELAYED, READY, Handle

Binding = tuple[str, str, str]
"""``(routing_key, pattern, queue)``: a row of an exchange's table as kombu has it."""

FOREVER = 0
"""The owner of a queue that stays."""


class Bindings:
    """handle: the connection that publishes."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def declare_queue(self, queue: str, owner: int = FOREVER, ttl: float | None = None) -> None:
        """Make *queue*. owner: the generation that it is to go with. ttl: seconds after which its messages
        may go."""
        row = (queue, owner, ttl)
        known = "SELECT 1 FROM queue WHERE name = ? AND owner = ? AND ttl IS ?"
        if not self._handle.read(known, row):
            make = "INSERT OR REPLACE INTO queue (name, owner, ttl) VALUES (?, ?, ?)"
            self._handle.write(lambda connection: connection.execute(make, row))

    def has_queue(self, queue: str) -> bool:
        """Whether *queue* was declared, or holds anything."""
        known = "SELECT 1 FROM queue WHERE name = ? UNION ALL SELECT 1 FROM message WHERE queue = ? LIMIT 1"
        return bool(self._handle.read(known, (queue, queue)))

    def drop_queue(self, queue: str) -> None:
        """Unmake *queue*,
        with its bindings and all that waits in it. What is on lease can still be settled."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM queue WHERE name = ?", (queue,))
            _clear(connection, queue)

        self._handle.write(work)

    def size(self, queue: str) -> int:
        """How many messages of *queue* could be leased now."""
        ready = f"SELECT count(*) FROM message WHERE queue = ? AND state = {READY}"
        return int(self._handle.read(ready, (queue,))[0][0])

    def bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Let *queue* have what is published to *exchange* with such a routing key."""
        row = (exchange, routing_key, pattern, queue)
        known = "SELECT 1 FROM binding WHERE exchange = ? AND routing_key = ? AND pattern = ? AND queue = ?"
        if not self._handle.read(known, row):
            make = "INSERT OR IGNORE INTO binding VALUES (?, ?, ?, ?)"
            self._handle.write(lambda connection: connection.execute(make, row))

    def unbind(self, exchange: str, routing_key: str | None = None, queue: str | None = None) -> None:
        """End bindings of *exchange*; None: whatever the routing key or queue is."""
        statement = (
            "DELETE FROM binding WHERE exchange = :exchange AND (:routing_key IS NULL OR "
            "routing_key = :routing_key) AND (:queue IS NULL OR queue = :queue)"
        )
        values = {"exchange": exchange, "routing_key": routing_key, "queue": queue}
        self._handle.write(lambda connection: connection.execute(statement, values))

    def bindings(self, exchange: str) -> list[Binding]:
        """The table of *exchange*; [] when nothing is bound to it."""
        table = "SELECT routing_key, pattern, queue FROM binding WHERE exchange = ?"
        return self._handle.read(table, (exchange,))


def drop_queues_of(connection: sqlite3.Connection, owner: int) -> None:
    """Within a transaction: unmake the queues that nobody but *owner* still wanted."""
    queues = connection.execute("SELECT name FROM queue WHERE owner = ?", (owner,)).fetchall()
    if queues:
        connection.execute("DELETE FROM queue WHERE owner = ?", (owner,))
    for (queue,) in queues:
        if connection.execute("SELECT 1 FROM queue WHERE name = ?", (queue,)).fetchone() is None:
            _clear(connection, queue)


def _clear(connection: sqlite3.Connection, queue: str) -> None:
    connection.execute("DELETE FROM binding WHERE queue = ?", (queue,))
    connection.execute(f"DELETE FROM message WHERE queue = ? AND state IN ({READY}, {DELAYED})", (queue,))
