"""Fixtures for tests of worker components: an app of small tasks, a broker in memory, requests as from a
broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qworker import QWorker
from qworker.components.request import Request, receive
from qworker.message.protocol import TaskMessage, encode
from qworker.testing import FakeClock, MemoryStore
from qworker.transports.lease import Envelope, Leased

ACCEPT = frozenset({"json"})


class WatchedClock(FakeClock):
    """on_sleep: called after each sleep."""

    on_sleep: Callable[[], None] | None = None

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.on_sleep is not None:
            self.on_sleep()


class Rooms:
    """store, clock, app; the app has the tasks add, nap (async), once (acked early) and boom.

    store: a broker, or the class of one that is to have this clock."""

    def __init__(self, *, store: MemoryStore | type[MemoryStore] = MemoryStore, **settings: Any) -> None:
        self.clock = WatchedClock()
        self.store = store(self.clock) if isinstance(store, type) else store
        settings.setdefault("backend", "cache+memory://")
        self.app = QWorker("rooms", broker=self.store, clock=self.clock, set_as_current=False, **settings)
        self.ran: list[Any] = []

        @self.app.task(name="add")
        def add(*args: Any) -> Any:
            self.ran.append(args)
            return sum(args)

        @self.app.task(name="nap")
        async def nap(*args: Any) -> Any:
            self.ran.append(args)
            return args

        @self.app.task(name="once", acks_late=False)
        def once(*args: Any) -> Any:
            self.ran.append(args)

        @self.app.task(name="boom")
        def boom(*args: Any) -> Any:
            self.ran.append(args)
            raise ValueError("boom")

    def envelope(self, task: str = "add", *args: Any, **fields: Any) -> Envelope:
        """A message for the broker; *fields* are those of TaskMessage and of Envelope."""
        own = {name: fields.pop(name) for name in ("queue", "priority", "due") if name in fields}
        encoded = encode(
            TaskMessage(task=task, id=fields.pop("id", f"{task}-id"), args=args, **fields), self.app.signer
        )
        return Envelope(own.pop("queue", "celery"), encoded.headers, encoded.properties, encoded.body, **own)

    def leased(self, tag: int = 1, task: str = "add", *args: Any, **fields: Any) -> Leased:
        """A leased message; *fields* are those of TaskMessage and of Leased."""
        names = ("deliveries", "redelivered", "requeued", "due")
        own: dict[str, Any] = {"deliveries": 0, "redelivered": False, "requeued": 0, "due": None}
        own.update((name, fields.pop(name)) for name in names if name in fields)
        fields.setdefault("id", f"id-{tag}")
        envelope = self.envelope(task, *args, **fields)
        queue, headers, properties, body, priority = envelope[:5]
        counts = own["due"], own["deliveries"], own["redelivered"], own["requeued"]
        return Leased(tag, queue, priority, *counts, headers, properties, body)

    def request(
        self, tag: int = 1, task: str = "add", *args: Any, generation: int = 1, **fields: Any
    ) -> Request:
        """A request that was received."""
        return receive(self.app, self.leased(tag, task, *args, **fields), generation, ACCEPT)

    def requests(self, count: int, task: str = "add", first: int = 1, **fields: Any) -> list[Request]:
        """*count* requests, with tags from *first* on."""
        return [self.request(tag, task, **fields) for tag in range(first, first + count)]


def tags(requests: Any) -> list[int]:
    """The tags of *requests*."""
    return [request.tag for request in requests]
