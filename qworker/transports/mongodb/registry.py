"""The registry of the MongoDB broker.

Comes from:  ``transports/as_kombu``, by ``Broker.registry``.
Goes to:     the collection of the registry: an entry a document, with when it lapses.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pymongo import ReplaceOne

from qworker.transports.mongodb.server import Collections, Server
from qworker.transports.registry import Registry


class MongoRegistry(Registry):
    """See Registry."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def entries(self) -> dict[str, float | None]:
        def work(found: Collections) -> dict[str, float | None]:
            return {row["_id"]: row["expires"] for row in found.registry.find()}

        return self._server.run(work)

    def put(self, entries: Mapping[str, float | None]) -> None:
        def work(found: Collections) -> None:
            found.registry.bulk_write(
                [
                    ReplaceOne({"_id": entry}, {"expires": expires}, upsert=True)
                    for entry, expires in entries.items()
                ]
            )

        if entries:
            self._server.run(work)

    def drop(self, entries: Iterable[str]) -> None:
        gone = list(entries)

        def work(found: Collections) -> None:
            found.registry.delete_many({"_id": {"$in": gone}})

        if gone:
            self._server.run(work)
