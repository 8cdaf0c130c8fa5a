"""Locks and counters in an SQL database, in a separate table.

Comes from:  ``backend.py``.
Goes to:     ``database.py``.
Thread:      any.
"""

from __future__ import annotations

import sqlalchemy as sa

from qworker.backends.sql.database import Database
from qworker.clock import Clock


class KeyTable:
    """The table ``qworker_keyvalue``. A lock is a row; a counter is the row's value."""

    def __init__(self, database: Database, table: sa.Table, clock: Clock) -> None:
        self._database = database
        self._table = table
        self._clock = clock

    def add(self, key: str, ttl: float | None) -> bool:
        """See Backend.add()."""
        return self._add(key, 1, ttl)

    def _add(self, key: str, value: int, ttl: float | None) -> bool:
        self._forget_expired(key)
        values = {"key": key, "value": value, "expires": self._expiry(ttl)}
        return self._database.insert(self._table.insert(), values)

    def hold(self, key: str, holder: int, ttl: float) -> int:
        """Give *key* to *holder* for *ttl* seconds, unless it has a holder; return the holder."""
        query = sa.select(self._table.c.value).where(self._table.c.key == key)
        while not self._add(key, holder, ttl):
            held = self._database.run(lambda connection: connection.execute(query).scalar())
            if held is not None:
                return int(held)
        return holder

    def incr(self, key: str, ttl: float | None) -> int:
        """See Backend.incr()."""
        while True:
            self._forget_expired(key)
            value = self._database.run(lambda connection: self._count(connection, key, ttl))
            if value is not None:
                return value
            if self.add(key, ttl):
                return 1

    def _count(self, connection: sa.Connection, key: str, ttl: float | None) -> int | None:
        """Add 1 to an existing counter; None: there is none."""
        table = self._table
        higher = table.update().where(table.c.key == key)
        higher = higher.values(value=table.c.value + 1, expires=self._expiry(ttl))
        # One transaction: the UPDATE locks the row that the SELECT reads.
        level = "SERIALIZABLE" if connection.dialect.name == "sqlite" else "READ COMMITTED"
        with connection.execution_options(isolation_level=level).begin():
            if not connection.execute(higher).rowcount:
                return None
            return int(connection.execute(sa.select(table.c.value).where(table.c.key == key)).scalar_one())

    def delete(self, key: str) -> None:
        """See Backend.delete()."""
        self._database.execute(self._table.delete().where(self._table.c.key == key))

    def sweep(self, now: float) -> int:
        """Delete rows that expired before epoch second *now*; return their number."""
        return self._database.execute(self._table.delete().where(self._table.c.expires <= now))

    def _forget_expired(self, key: str) -> None:
        table = self._table
        self._database.execute(table.delete().where(table.c.key == key, table.c.expires <= self._clock.now()))

    def _expiry(self, ttl: float | None) -> float | None:
        return None if ttl is None else self._clock.now() + ttl
