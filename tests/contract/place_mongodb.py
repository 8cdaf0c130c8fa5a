"""The MongoDB broker as a place for the contract suite: a database for each directory, dropped after it.

Comes from:  lease_places.
Goes to:     the server that TEST_QWORKER_MONGODB_URL names, or else mongoeco, in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from qworker.testing.contract import Place
from qworker.transports.lease import Broker
from qworker.transports.mongodb.broker import MongoBroker
from tests.servers import require

SLOW = {
    "test_thousands_of_messages_due_at_once": "mongoeco scans all documents for each query",
    "test_many_dead_letters_are_retried_and_discarded_at_once": "the same",
    "test_sweep_works_in_portions": "the same",
}


@cache
def mongo_client(url: str) -> Any:
    import pymongo

    return pymongo.MongoClient(url)


def database_url(server: str, directory: Path) -> str:
    """The URL of the database of *directory*."""
    start, mark, query = server.partition("?")
    name = f"qworker_test_{hashlib.sha1(str(directory).encode()).hexdigest()[:16]}"
    return f"{start.rpartition('/')[0]}/{name}{mark}{query}"


class MongoPlace(Place):
    """A database for each *directory*; other processes find it by the directory."""

    examples = 6
    """Of the state machine."""
    cannot = {} if "TEST_QWORKER_MONGODB_URL" in os.environ else SLOW
    """Tests that take minutes with mongoeco, and why. They run if TEST_QWORKER_MONGODB_URL is set."""

    def __init__(self, directory: Path, server: str | None = None) -> None:
        self.server = server or require("mongodb")
        self.url = self.results_url = database_url(self.server, directory)
        self.database = mongo_client(self.server)[self.url.rpartition("/")[2].partition("?")[0]]

    def open(self, **options: Any) -> Broker:
        return MongoBroker(self.url, **options)

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        row = self.database.celery_taskmeta.find_one({"_id": task_id})
        if row is None:
            return None
        result = row["result"]
        return row["status"], result.encode() if isinstance(result, str) else bytes(result)

    def count(self) -> int:
        return int(self.database.qworker_message.count_documents({}))

    def lose(self) -> None:
        for name in self.database.list_collection_names():
            self.database[name].delete_many({})

    def clear(self) -> None:
        self.database.client.drop_database(self.database.name)
