"""Reading a stream from somewhere to its end, which takes nothing out of it.

Comes from:  ``letters.py``, ``revocations.py``.
Goes to:     ``direct.py``; a consumer for each reading, which the server forgets.
Thread:      one for each Reading.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from qworker.transports.nats.direct import Asked, Inbox

FORGOTTEN_AFTER_SECONDS = 60


class Entry(NamedTuple):
    """A message in a stream. number: its place there. stored: nanoseconds of the server's wall clock at which
    it was stored."""

    number: int
    stored: int
    subject: str
    data: bytes


class Reading:
    """Of *stream*, from its beginning, or from what was stored at *start* or later (nanoseconds)."""

    def __init__(self, connection: Asked, stream: str, start: int | None = None) -> None:
        self._connection = connection
        self._stream = stream
        self._inbox = Inbox(connection)
        config: dict[str, Any] = {
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": FORGOTTEN_AFTER_SECONDS * 10**9,
        }
        if start is not None:
            moment = datetime.fromtimestamp(start // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
            config |= {
                "deliver_policy": "by_start_time",
                "opt_start_time": f"{moment}.{start % 10**9:09d}Z",
            }
        request = {"stream_name": stream, "config": config}
        self._consumer = str(connection.ask(f"CONSUMER.CREATE.{stream}", request)["name"])
        self._count = 0

    def read(self, count: int) -> list[Entry]:
        """Up to *count* more; [] at the end. TimeoutError when nothing comes, and there is more."""
        next_message = f"{self._connection.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        end = time.monotonic() + self._connection.timeout
        while not (found := self._inbox.pull(next_message, count, 0)) and self._inbox.silent:
            if not self._has_more():
                break
            if time.monotonic() >= end:
                raise TimeoutError(f"what stream {self._stream} holds does not come")
        self._count += len(found)
        return [
            Entry(int(words[-4]), int(words[-2]), one.subject, one.data)
            for one, _ in found
            if (words := one.reply.split("."))
        ]

    def _has_more(self) -> bool:
        """Whether the server has something that has not come here; it may be on its way."""
        found = self._connection.ask(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        return int(found["delivered"]["consumer_seq"]) > self._count or int(found["num_pending"]) > 0

    def rest(self) -> list[Entry]:
        """All that is left; the server forgets the consumer."""
        entries: list[Entry] = []
        while found := self.read(500):
            entries += found
        self._connection.ask(f"CONSUMER.DELETE.{self._stream}.{self._consumer}")
        return entries
