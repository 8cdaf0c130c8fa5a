"""The registry of the Redis broker.

Comes from:  ``broker.py``.
Goes to:     the hash of the name registry among the broker's keys: when each entry lapses, as text.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from qworker.transports.redis.connection import checked, pack
from qworker.transports.redis.database import Database
from qworker.transports.registry import Registry

NEVER = b"never"


class RedisRegistry(Registry):
    """database: whose links any thread may use."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = database.layout.key("registry")

    def entries(self) -> dict[str, float | None]:
        found = self._ask("HGETALL", self._key)
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {entry.decode(): None if value == NEVER else float(value) for entry, value in pairs}

    def put(self, entries: Mapping[str, float | None]) -> None:
        fields: list[Any] = []
        for entry, expires in entries.items():
            fields += (entry, NEVER if expires is None else repr(expires))
        if fields:
            self._ask("HSET", self._key, *fields)

    def drop(self, entries: Iterable[str]) -> None:
        fields = list(entries)
        if fields:
            self._ask("HDEL", self._key, *fields)

    def _ask(self, *command: Any) -> Any:
        with self._database.links.lent() as link:
            (reply,) = link.ask(pack(command))
            return checked(link, reply)
