"""Dead letters in RabbitMQ: the queue ``qworker.dead``, looked through and put back.

Comes from:  the administration in ``amqp.py``.
Goes to:     the server, over a link that is made for it; what is sent, by the publisher.
Thread:      any.

A queue can only be read by taking messages out of it. One reader at a time takes all of them, acknowledges those that are
to go, and gives back the rest, to where they were, by closing its channel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from amqp.exceptions import AccessRefused

from qworker.errors import BrokerUnavailable
from qworker.naming import task_id
from qworker.transports.amqp_codec import Delivery, ack_frame, content_header, read_content, tag_of
from qworker.transports.amqp_link import Link
from qworker.transports.amqp_publisher import Outgoing
from qworker.transports.amqp_queues import DEAD, Queues
from qworker.transports.lease import Dead


class Letter(NamedTuple):
    """A dead letter in hand. number: of its delivery."""

    number: int
    dead: Dead
    priority: int


class Shelf:
    """All dead letters, in hand until the channel closes."""

    def __init__(self, link: Link, channel: int, letters: list[Letter]) -> None:
        self._link = link
        self._channel = channel
        self.letters = letters

    def chosen(self, tags: Sequence[int] | None) -> list[Letter]:
        """Those with *tags* (None: all), oldest first."""
        wanted = None if tags is None else set(tags)
        return [letter for letter in self.letters if wanted is None or letter.dead.tag in wanted]

    def remove(self, letters: Sequence[Letter]) -> int:
        if letters:
            self._link.write(b"".join(ack_frame(self._channel, letter.number, False) for letter in letters))
        return len(letters)


@contextmanager
def shelf(connect: Callable[[float], Link], queues: Queues, timeout: float) -> Iterator[Shelf]:
    """Take all dead letters in hand, and give back what was not removed. BrokerUnavailable when another does so now."""
    link = connect(timeout)
    try:
        count = queues.look(link, DEAD)
        found: list[Delivery] = []
        link.on_message = found.append
        channel = link.channel()
        if count:
            try:
                link.call(channel.basic_consume, queues.prefix + DEAD, exclusive=True)
            except AccessRefused as error:
                raise BrokerUnavailable(
                    f"the dead letters are being looked through by another: try again ({error.reply_text})"
                ) from None
            deadline = time.monotonic() + timeout
            while len(found) < count and (left := deadline - time.monotonic()) > 0:
                link.read(left)
        yield Shelf(link, channel.channel_id, [_letter(message) for message in found])
        link.call(channel.close)  # answered once the acks before it were carried out
    finally:
        link.close()


def _letter(message: Delivery) -> Letter:
    content = read_content(message)
    own = content.own
    died = own.get("x-qworker-died")
    deliveries = own.get("x-qworker-deliveries")
    dead = Dead(
        tag_of(message, content),
        str(own.get("x-qworker-queue", "")),
        str(own.get("x-qworker-reason", "not put here by qworker")),
        float(died) if isinstance(died, int | float) else 0.0,
        deliveries if isinstance(deliveries, int) else 0,
        content.text,
        content.properties,
        message.body,
    )
    return Letter(message.number, dead, content.priority)


def buried(dead: Dead, queues: Queues, message_id: str, priority: int, more: Mapping[str, Any]) -> Outgoing:
    """The message of *dead* on its way to the dead letters. more: what else its headers are to hold."""
    own = {
        **more,
        "x-qworker-queue": dead.queue,
        "x-qworker-reason": dead.reason,
        "x-qworker-died": float(dead.died_at),
        "x-qworker-deliveries": dead.deliveries,
    }
    header = content_header(dead.headers, dead.properties, len(dead.body), message_id, priority, own)
    return Outgoing(queues.prefix + DEAD, header, dead.body)


def sent_back(letter: Letter, queues: Queues) -> Outgoing:
    """The message of *letter* as it goes back to its queue: with a new id, so that nothing known of the old one counts."""
    dead = letter.dead
    more: dict[str, Any] = {"x-qworker-redelivered": True}
    header = content_header(dead.headers, dead.properties, len(dead.body), task_id(), letter.priority, more)
    return Outgoing(queues.prefix + dead.queue, header, dead.body)
