"""Records the calls to a MongoDB server, and runs code just before a call.

Comes from:  PyMongo, as ``options={"event_listeners": [calls]}`` of a broker; a test, in place of a
             collection.
Goes to:     tests that count, and those of what others do meanwhile.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymongo import monitoring

from qworker.testing.contract.messages import message
from qworker.transports.lease import Ack
from qworker.transports.mongodb.broker import MongoBroker


class Calls(monitoring.CommandListener):
    """names: of the commands, in order. in_transaction: of those that belong to one. updated: what was to be
    updated, and how."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.in_transaction: list[str] = []
        self.updated: list[Any] = []

    def started(self, event: Any) -> None:
        self.names.append(event.command_name)
        self.updated += event.command.get("updates", ())
        if event.command.get("autocommit") is False:
            self.in_transaction.append(event.command_name)

    def succeeded(self, event: Any) -> None:
        pass

    failed = succeeded


class Before:
    """A *collection* that calls *act* before each of the first *times* calls of *method*."""

    def __init__(self, collection: Any, method: str, act: Callable[[], object], times: int = 1) -> None:
        self._collection, self._method, self._act, self._left = collection, method, act, times

    def __getattr__(self, name: str) -> Any:
        if name == self._method and self._left:
            self._left -= 1
            self._act()
        return getattr(self._collection, name)


def calls_of_a_batch(url: str, size: int = 16) -> list[str]:
    """What a worker asks for that takes *size* of many messages and stores their results, on its second
    batch, when it knows the server."""
    calls = Calls()
    store = MongoBroker(url, options={"event_listeners": [calls]})
    own = store.consumer.register("w@test", ["q"], 1)
    store.sender.push([message(str(number)) for number in range(4 * size)])
    for batch in range(2):
        calls.names.clear()
        messages = store.consumer.lease(["q"], size).messages
        assert len(messages) == size
        rows = [(f"task-{batch}-{each.tag}", "SUCCESS", b"{}", None) for each in messages]
        acks = [Ack(each.tag, row) for each, row in zip(messages, rows, strict=True)]
        assert store.consumer.settle(own, acks) == set()
    asked = list(calls.names)
    store.close()
    return asked
