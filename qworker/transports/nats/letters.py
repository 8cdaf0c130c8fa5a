"""Dead letters and failed tasks: a stream of each, which the server itself keeps within limits.

Comes from:  ``server.py``.
Goes to:     ``client.py`` and ``inbox.py``.
Thread:      see ServerQueue.

Reading letters does not take them out: they are read, and deleted by number.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.transports.held.messages import parsed
from qworker.transports.held.port import Count, Entry, Received, ServerQueue
from qworker.transports.nats.client import Client, Post, Refused, read_answer
from qworker.transports.nats.inbox import Reading
from qworker.transports.nats.queue import BATCH, publish, written
from qworker.transports.nats.url import Layout
from qworker.transports.nats.wire import WireMessage
from qworker.transports.own_headers import QUEUE

NO_MESSAGE = frozenset({10037, 10043, 10057})
"""JetStream's errors for deleting a missing message."""


class LetterQueue(ServerQueue):
    """See NatsQueue. name: the kind of the letters: DEAD, FAILED. A take() continues where the last one
    ended; declare the queue again to start from the beginning."""

    batch = BATCH

    def __init__(self, connection: Client, name: str, layout: Layout) -> None:
        self.name = name
        self._connection = connection
        self._layout = layout
        self._stream = layout.letters_stream(name)
        self._reading: Reading | None = None

    def send(self, entries: Sequence[Entry]) -> None:
        posts = []
        for text, *_ in entries:
            queue = str(parsed(text).headers.get(QUEUE, ""))
            posts.append(
                Post(self._layout.letter_subject(self.name, queue), text.encode("utf-8", "surrogatepass"))
            )
        publish(self._connection, self._stream, posts, [entry.id for entry in entries])

    def take(self, count: int, seconds: float) -> list[Received]:
        if self._reading is None:
            self._reading = Reading(self._connection, self._stream)
        return [
            Received(
                self,
                found.data.decode("utf-8", "replace"),
                id=f"{found.number}.{found.stored}",
                receipt=found.number,
                lease_seconds=float("inf"),
                redelivered=False,
            )
            for found in self._reading.read(count)
        ]

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        return []

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Does nothing: they are still in the stream."""

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        subject = f"{self._connection.api}.STREAM.MSG.DELETE.{self._stream}"
        posts = [Post(subject, written({"seq": one.receipt, "no_erase": True})) for one in messages]
        return [
            one
            for one, answer in zip(messages, self._connection.exchange(posts), strict=True)
            if not _was_there(answer)
        ]

    def count(self) -> Count:
        found = self._connection.ask(f"STREAM.INFO.{self._stream}")
        return Count(int(found["state"]["messages"]))

    def purge(self) -> int:
        return int(self._connection.ask(f"STREAM.PURGE.{self._stream}")["purged"])


def _was_there(answer: WireMessage) -> bool:
    """Whether the message to be deleted existed."""
    try:
        read_answer(answer)
    except Refused as error:
        if error.code not in NO_MESSAGE:
            raise
        return False
    return True
