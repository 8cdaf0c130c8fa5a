"""The registry of the SQL broker.

Comes from:  ``broker.py``.
Goes to:     the table ``qworker_registry``, which is created when something is first stored there.
Thread:      any, with the publishing connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from qworker.transports.registry import Registry
from qworker.transports.sql.link import Handle, Link
from qworker.transports.sql.schema import MYSQL_TABLE

# The key is a digest, because MySQL limits keys, and entries have no limit.
TABLE = """CREATE TABLE IF NOT EXISTS qworker_registry (
digest varchar(64) PRIMARY KEY, entry {text} NOT NULL, expires double precision) {suffix}"""
_MAKE = {
    # Two processes that create a table at the same time conflict in PostgreSQL.
    "postgresql": ("SELECT pg_advisory_xact_lock(7161001)", TABLE.format(text="text", suffix="")),
    "mysql": (TABLE.format(text="longtext", suffix=MYSQL_TABLE),),
}
_PUT = {
    "postgresql": "INSERT INTO qworker_registry (digest, entry, expires) VALUES (%s, %s, %s) "
    "ON CONFLICT (digest) DO UPDATE SET expires = excluded.expires",
    "mysql": "INSERT INTO qworker_registry (digest, entry, expires) VALUES (%s, %s, %s) "
    "ON DUPLICATE KEY UPDATE expires = VALUES(expires)",
}


class SQLRegistry(Registry):
    """handle: the connection that publishes and administers. family: ``postgresql`` or ``mysql``."""

    def __init__(self, handle: Handle, family: str) -> None:
        self._handle = handle
        self._family = family
        self._seen: Link | None = None  # under the handle's lock
        """The connection on which the table was last found."""

    def _is_there(self, link: Link) -> bool:
        if self._seen is not link and link.columns("qworker_registry"):
            self._seen = link
        return self._seen is link

    def entries(self) -> dict[str, float | None]:
        def work(link: Link) -> dict[str, float | None]:
            if not self._is_there(link):
                return {}
            return dict(link.ask("SELECT entry, expires FROM qworker_registry"))

        return self._handle.run_locked(work)

    def put(self, entries: Mapping[str, float | None]) -> None:
        rows = [(_digest(entry), entry, expires) for entry, expires in sorted(entries.items())]

        def make(link: Link) -> None:
            if not self._is_there(link):
                for statement in _MAKE[self._family]:
                    link.do(statement)

        def work(link: Link) -> None:
            for row in rows:
                link.do(_PUT[self._family], row)

        if rows:
            self._handle.transact(make)
            self._handle.transact(work)

    def drop(self, entries: Iterable[str]) -> None:
        digests = sorted(_digest(entry) for entry in entries)

        def work(link: Link) -> None:
            if self._is_there(link):
                for digest in digests:
                    link.do("DELETE FROM qworker_registry WHERE digest = %s", (digest,))

        if digests:
            self._handle.transact(work)


def _digest(entry: str) -> str:
    return sha256(entry.encode("utf-8", "surrogatepass")).hexdigest()
