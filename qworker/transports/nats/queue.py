"""One queue of JetStream: the messages of a subject, delivered by a durable consumer, in batches.

Comes from:  ``broker.py``.
Goes to:     ``client.py`` and ``inbox.py``.
Thread:      see ServerQueue; take() has an inbox of its own.

JetStream accepts any acknowledgement or renewal as that of the last recipient, so a worker with an expired
lease must not send any: this is determined here, from the time of the last renewal. Of a batch of
acknowledgements to one consumer the last is answered: the server works in order, so all before it are done by
then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from qworker.errors import PublishError
from qworker.interrupts import reraise_interrupt
from qworker.transports.held.port import (
    Count,
    NewMessage,
    NotAll,
    Received,
    ServerQueue,
    by_lease,
    expired_leases,
)
from qworker.transports.nats.client import Client, Post, Refused, read_answer
from qworker.transports.nats.inbox import Inbox, PulledMessage

ACK, RENEW = b"+ACK", b"+WPI"
LONGEST_RETURN = 365 * 86400
"""Seconds; the server has no limit."""
BATCH = 256
TRIES = 2
TOO_LARGE = 10054
"""JetStream's error for a message larger than the stream allows."""
DELIVERED_AT = {9: 4, 11: 6, 12: 6}
"""Position of the delivery number in the subject of an acknowledgement, by its length in tokens."""


class Delivery(Received):
    """A message delivered to us, while it is in use here."""

    __slots__ = ("__weakref__",)


class NatsQueue(ServerQueue):
    """The queue *name*: messages of *subject* in *stream*, delivered by *consumer*. lease_seconds: its
    ack_wait."""

    batch = BATCH
    longest_return = LONGEST_RETURN

    def __init__(
        self,
        connection: Client,
        name: str,
        *,
        stream: str,
        subject: str,
        consumer: str,
        lease_seconds: float,
    ) -> None:
        self.name = name
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._consumer = consumer
        self.lease_seconds = lease_seconds
        self._inbox = Inbox(connection)
        self._held: WeakValueDictionary[str, Delivery] = WeakValueDictionary()
        """By id. The server (2.9.10) delivers some messages of a dead worker twice at a time."""

    def send(self, entries: Sequence[NewMessage]) -> None:
        publish(
            self._connection,
            self._stream,
            [Post(self._subject, entry.text.encode("utf-8", "surrogatepass")) for entry in entries],
            [entry.id for entry in entries],
        )

    def take(self, count: int, seconds: float) -> list[Received]:
        next_message = f"{self._connection.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        received = map(self._received, self._inbox.pull(next_message, count, seconds))
        if self._inbox.silent:
            self.count()  # raises an error if the consumer no longer exists
        return [one for one in received if one is not None]

    def interrupt(self) -> None:
        self._inbox.interrupt()

    def _received(self, pulled: PulledMessage) -> Received | None:
        """Return the *pulled* message; None when we hold it already."""
        found = pulled.message
        words = found.reply.split(".")
        id = f"{words[-4]}.{words[-2]}"  # the number in the stream, and when it was stored
        held = self._held.get(id)
        if held is not None and time.monotonic() < held.expires:
            return None
        delivered = int(words[DELIVERED_AT[len(words)]])
        delivery = Delivery(
            self,
            found.data.decode("utf-8", "replace"),
            id=id,
            receipt=found.reply,
            lease_seconds=self.lease_seconds,
            redelivered=delivered > 1,
        )
        delivery.hidden_from(time.monotonic() if pulled.since is None else pulled.since)
        self._held[id] = delivery
        return delivery

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        ours, gone = by_lease(messages)
        self._acknowledge(ours, RENEW)
        return gone + expired_leases(ours)

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        word = f'-NAK {{"delay": {int(delay * 1e9)}}}' if delay else "-NAK"
        self._forget(messages)
        try:
            self._acknowledge(by_lease(messages)[0], word.encode())
        except ConnectionError as error:
            reraise_interrupt(error)
            raise NotAll(range(len(messages)), error) from None  # nothing was sent

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        ours, gone = by_lease(messages)
        self._acknowledge(ours, ACK)
        self._forget(messages)
        return gone + expired_leases(ours)

    def _forget(self, messages: Sequence[Received]) -> None:
        for one in messages:
            self._held.pop(one.delivery_tag, None)

    def _acknowledge(self, messages: Sequence[Received], word: bytes) -> None:
        """Send the server *word* for each of *messages*; it has carried them out when this returns."""
        if messages:
            last = len(messages) - 1
            posts = [Post(one.receipt, word, answered=number == last) for number, one in enumerate(messages)]
            (answer,) = self._connection.exchange(posts)
            if (answer.headers or {}).get("Status"):
                raise Refused(503, f"the consumer of queue {self.name} is gone")

    def count(self) -> Count:
        found = self._connection.ask(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
        return Count(int(found["num_pending"]), leased=int(found["num_ack_pending"]))

    def purge(self) -> int:
        """Also deletes running messages: they are lost if their worker dies."""
        found = self._connection.ask(f"STREAM.PURGE.{self._stream}", {"filter": self._subject})
        return int(found["purged"])


def publish(connection: Client, stream: str, posts: Sequence[Post], ids: Iterable[str]) -> None:
    """Publish *posts* to *stream*; it has stored them when this returns. Unanswered ones are sent again,
    once, under the same *ids*, and stored once. Raises PublishError for messages that it will never
    accept."""
    headers = [{"Nats-Msg-Id": id, "Nats-Expected-Stream": stream} for id, _ in zip(ids, posts, strict=False)]
    named = [post._replace(headers=own) for post, own in zip(posts, headers, strict=True)]
    largest = connection.max_payload
    for size in (post.size for post in named):
        if size > largest:
            raise PublishError(
                f"a message of {size} bytes is larger than the server accepts ({largest}): increase "
                "its max_payload, or send less data"
            )
    for left in reversed(range(TRIES)):
        try:
            answers = connection.exchange(named, connection.timeout / TRIES)
            break
        except (TimeoutError, ConnectionError) as error:
            reraise_interrupt(error)
            if not left:
                raise
    for answer in answers:
        try:
            read_answer(answer)
        except Refused as error:
            if error.code == TOO_LARGE:
                raise PublishError(f"stream {stream}: {error}") from error
            raise


def written(value: Any) -> bytes:
    """Return *value* as JSON."""
    return json.dumps(value).encode()
