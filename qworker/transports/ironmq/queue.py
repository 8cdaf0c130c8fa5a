"""One queue of an IronMQ, in batches where it has them.

Comes from:  ``server.py``.
Goes to:     ``client.py``.
Thread:      see ServerQueue; a client serves several.

A reserved message is identified by its id and that of its reservation, which a touch replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from qworker.errors import PublishError
from qworker.interrupts import reraise_interrupt
from qworker.transports.held.port import Count, Entry, NotAll, Received, ServerQueue
from qworker.transports.ironmq.client import Client, HTTPError, IronError

LONGEST_DELAY = 604_800
"""Maximum seconds for which IronMQ delays a message, and the default lifetime of any message."""
GONE = frozenset({403, 404})
"""Status codes for a message that has since been delivered to another consumer, or deleted."""
UNFIT = frozenset({400, 406, 413, 422})
"""Status codes for messages that it will never accept."""


class IronQueue(ServerQueue):
    """The queue *name*, created if missing. hidden: seconds for which received or extended messages are
    hidden from others, 30 to 86400."""

    batch = 100
    longest_delay = LONGEST_DELAY
    longest_return = LONGEST_DELAY

    def __init__(self, client: Client, name: str, hidden: int) -> None:
        self.name = name
        self.hidden = hidden
        self._client = client
        self._path = f"/{quote(name, safe='')}"
        self._make()

    def _make(self) -> None:
        """Create the queue if it is missing; an existing one keeps its settings."""
        try:
            self._client.call("GET", self._path)
        except IronError as error:
            if error.status != 404:
                raise
            self._client.call("PUT", self._path, {"queue": {}})

    def send(self, entries: Sequence[Entry]) -> None:
        messages = [{"body": text, "delay": delay} for text, delay, _ in entries]
        try:
            answer = self._client.call("POST", f"{self._path}/messages", {"messages": messages})
        except IronError as error:
            if error.status in UNFIT:
                raise PublishError(f"IronMQ refuses it: {error}") from error
            raise
        ids = answer.get("ids")
        if not isinstance(ids, list) or len(ids) != len(messages):
            raise IronError(0, f"it does not confirm {len(messages)} messages")

    def take(self, count: int, seconds: float) -> list[Received]:
        wait = int(seconds)
        asked = {"n": count, "timeout": self.hidden, "wait": wait}
        answer = self._client.call("POST", f"{self._path}/reservations", asked, wait=wait)
        return [self.received(found) for found in answer.get("messages") or ()]

    def received(self, found: dict[str, Any]) -> Received:
        """Return a message from IronMQ's form."""
        return Received(
            self,
            str(found.get("body", "")),
            id=str(found["id"]),
            receipt=found.get("reservation_id"),
            lease_seconds=self.hidden,
            redelivered=found.get("reserved_count") not in (None, 1),
        )

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        gone = []
        for message, answer in self._each(messages, "touch", {"timeout": self.hidden}):
            if answer is None:
                gone.append(message)
            else:
                message.receipt = answer.get("reservation_id") or message.receipt
        return gone

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        for _ in self._each(messages, "release", {"delay": delay}):
            pass

    def _each(
        self, messages: Sequence[Received], verb: str, more: dict[str, Any]
    ) -> Iterator[tuple[Received, dict[str, Any] | None]]:
        """Yield each message with IronMQ's answer to *verb*; None for those that are no longer ours."""
        for message in messages:
            path = f"{self._message(message)}/{verb}"
            try:
                yield message, self._client.call("POST", path, {"reservation_id": message.receipt, **more})
            except IronError as error:
                if error.status not in GONE:
                    raise
                yield message, None

    def _message(self, message: Received) -> str:
        return f"{self._path}/messages/{quote(message.delivery_tag, safe='')}"

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        ids = [{"id": one.delivery_tag, "reservation_id": one.receipt} for one in messages]
        try:
            self._client.call("DELETE", f"{self._path}/messages", {"ids": ids})
        except IronError as error:  # one of them is no longer ours; it does not say which
            if error.status not in GONE:
                raise
            return self._delete_each(messages)
        return []

    def _delete_each(self, messages: Sequence[Received]) -> list[Received]:
        gone: list[int] = []
        for place, message in enumerate(messages):
            try:
                if not self._delete_one(message):
                    gone.append(place)
            except (HTTPError, OSError) as error:
                reraise_interrupt(error)
                raise NotAll([*gone, *range(place, len(messages))], error) from None
        return [messages[place] for place in gone]

    def _delete_one(self, message: Received) -> bool:
        try:
            self._client.call("DELETE", self._message(message), {"reservation_id": message.receipt})
        except IronError as error:
            if error.status not in GONE:
                raise
            return False
        return True

    def count(self) -> Count:
        """Return all as ready: IronMQ does not distinguish waiting, delayed and reserved ones."""
        queue = self._client.call("GET", self._path).get("queue") or {}
        return Count(int(queue.get("size") or 0))

    def purge(self) -> int:
        """Also deletes running messages: they are lost if their worker dies."""
        size = self.count().ready
        self._client.call("DELETE", f"{self._path}/messages", {})
        return size
