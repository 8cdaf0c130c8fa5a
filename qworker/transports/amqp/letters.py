"""Reads, resends and discards dead letters (the queue ``qworker.dead``) and failed tasks (``qworker.failed``)
in RabbitMQ.

Comes from:  people and tools, by ``Broker.letters``; ``consumer.py``, which sweeps.
Goes to:     the server, over a separate link; messages are sent by the publisher.
Thread:      any.

A queue can only be read by taking messages out. One reader at a time takes all of them, acknowledges those to
be removed, and gives back the rest, to their positions, by closing its channel. The letters of all queues are
in one queue, so that administrators find them without knowing every queue; workers enforce the limit for each
queue by sweeping.

Headers that fill a frame leave no room for a reason: they are moved to the beginning of the body.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from amqp.exceptions import AccessRefused

from qworker.errors import BrokerUnavailable
from qworker.naming import task_id
from qworker.transports.amqp.codec import (
    Content,
    Delivery,
    ack_frame,
    content_header,
    largest_header,
    read_content,
    tag_of,
)
from qworker.transports.amqp.delays import PREFIX
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.outgoing import Outgoing, outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import DEAD, FAILED, LONGEST_TIME, Queues
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Again, Dead, Envelope, Kind, Letters, page_of
from qworker.transports.own_headers import (
    DELIVERIES,
    DIED,
    DUE,
    MOVED,
    QUEUE,
    REASON,
    REDELIVERED,
    instant,
    outline,
)

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 0.1
"""How long to wait for another reader of the dead letters."""
PLACES: Mapping[Kind, str] = {"dead": DEAD, "failed": FAILED}
"""The queues of letters, by kind."""
KINDS = {DEAD: "dead letters", FAILED: "failed tasks"}
"""Names of the letters in a queue."""
SWEEP_SECONDS = 5.0
LOOK_SECONDS = 3600.0
"""Interval of workers' checks for old letters, if the server's limit does not suffice."""


class Letter(NamedTuple):
    """A letter that was taken. number: of its delivery."""

    number: int
    dead: Dead
    priority: int


class InHand:
    """All letters of a kind, taken until the channel closes."""

    def __init__(self, link: Link, channel: int, letters: list[Letter], whole: bool) -> None:
        self._link = link
        self._channel = channel
        self.letters = letters
        self.frame_max: int = link.connection.frame_max
        self.whole = whole
        """Whether all could be read in time."""

    def chosen(self, tags: Sequence[int] | None) -> list[Letter]:
        """Return those with *tags* (None: all), oldest first."""
        wanted = None if tags is None else set(tags)
        return [letter for letter in self.letters if wanted is None or letter.dead.tag in wanted]

    def remove(self, letters: Sequence[Letter]) -> int:
        if letters:
            self._link.write(b"".join(ack_frame(self._channel, letter.number, False) for letter in letters))
        return len(letters)


def _letter(message: Delivery) -> Letter:
    content = read_content(message)
    own = content.own
    died, reason = own.get(DIED), own.get(REASON, "not written by qworker")
    if message.exchange.startswith(PREFIX):
        died, reason = own.get(DUE), "its queue was gone when it was due"
    deliveries = own.get(DELIVERIES)
    text, body = _moved_back(content, message.body)
    dead = Dead(
        tag_of(message, content),
        str(own.get(QUEUE, "")),
        str(reason),
        instant(died) or 0.0,
        deliveries if isinstance(deliveries, int) else 0,
        text,
        content.properties,
        body,
    )
    return Letter(message.number, dead, content.priority)


def _outline(message: Delivery) -> Letter:
    """Like _letter, without large parts."""
    letter = _letter(message)
    return letter._replace(dead=letter.dead._replace(headers="", properties=None, body=b""))


@contextmanager
def all_letters(
    server: Server,
    kind: str,
    timeout: float | None = None,
    read: Callable[[Delivery], Letter] = _letter,
    wait: bool = True,
) -> Iterator[InHand]:
    """Take all letters of a *kind* (DEAD, FAILED), and give back those that were not removed.
    BrokerUnavailable when another process does so, and has not ended within *timeout* seconds (None: the
    server's).

    wait: whether to wait for another process at all.
    """
    timeout = server.timeout if timeout is None else timeout
    link = server.connect(timeout)
    deadline = time.monotonic() + timeout
    try:
        count = server.queues.look(link, kind) or 0
        found: list[Letter] = []
        link.on_message = lambda message: found.append(read(message))
        channel = _consume(link, server.queues, kind, deadline if wait else 0.0) if count else link.channel()
        while len(found) < count and (left := deadline - time.monotonic()) > 0:
            link.read(left)
        yield InHand(link, channel.channel_id, found, len(found) >= count)
        link.call(channel.close)  # answered after the acks before it were carried out
    finally:
        link.close()


def _consume(link: Link, queues: Queues, kind: str, deadline: float) -> Any:
    """Return a channel that receives the letters exclusively."""
    while True:
        channel = link.channel()
        try:
            link.call(channel.basic_consume, queues.prefix + kind, exclusive=True)
        except AccessRefused as error:
            if time.monotonic() + AGAIN_SECONDS >= deadline:
                raise BrokerUnavailable(
                    f"the {KINDS[kind]} are being read by another process: try again ({error.reply_text})"
                ) from None
            time.sleep(AGAIN_SECONDS)
        else:
            return channel


class Sweeper:
    """Keeps the letters of a *kind* within the limits of each queue. Finding surplus ones requires reading
    all; so this is only done when there are more than the last time, by a tenth of a queue's limit."""

    def __init__(self, server: Server, kind: str) -> None:
        self._server = server
        self._kind = kind
        self._kept = 0  # listener only, as all below
        self._look_at = 0.0

    def sweep(self, count: int, now: float, expires: float, most: int) -> int:
        """Delete those of the *count* letters that died over *expires* seconds before *now*, or exceed the
        newest *most* of their queue; return their number. 0 also if another process is reading them."""
        stale = expires * 1000 > LONGEST_TIME and now >= self._look_at
        if not stale and count <= max(most, self._kept + most // 10):
            return 0
        try:
            with all_letters(self._server, self._kind, SWEEP_SECONDS, _outline, wait=False) as found:
                if not found.whole:
                    return 0  # the newest were not read, so surplus ones are unknown
                over = _over(found.letters, now - expires, most)
                self._kept = len(found.letters) - len(over)
                self._look_at = now + LOOK_SECONDS
                return found.remove(over)
        except BrokerUnavailable as error:
            logger.debug("the %s were not swept: %s", KINDS[self._kind], error)
            return 0


def _over(letters: Sequence[Letter], died_before: float, most: int) -> list[Letter]:
    newest: Counter[str] = Counter()
    over = []
    for letter in sorted(letters, key=lambda letter: (letter.dead.died_at, letter.number), reverse=True):
        newest[letter.dead.queue] += 1
        if newest[letter.dead.queue] > most or letter.dead.died_at < died_before:
            over.append(letter)
    return over


def as_letter(
    kind: str,
    dead: Dead,
    queues: Queues,
    message_id: str,
    priority: int,
    more: Mapping[str, Any],
    frame_max: int,
) -> Outgoing:
    """Return the message of *dead* as a letter of a *kind*. more: additional headers."""
    most = largest_header(frame_max)
    own = {
        **more,
        QUEUE: dead.queue,
        REASON: dead.reason[: most // 8],
        DIED: float(dead.died_at),
        DELIVERIES: dead.deliveries,
    }
    text, body = dead.headers, dead.body
    header = content_header(text, dead.properties, len(body), message_id, priority, own)
    if len(header) > most:
        moved = text.encode("utf-8", "surrogatepass")
        text, body = outline(text), moved + body
        header = content_header(
            text, dead.properties, len(body), message_id, priority, {**own, MOVED: len(moved)}
        )
    return Outgoing(queues.prefix + kind, header, body)


def _moved_back(content: Content, body: bytes) -> tuple[str, bytes]:
    """Return the original headers, as text, and body of a letter."""
    size = content.own.get(MOVED)
    if type(size) is not int or not 0 < size <= len(body):
        return content.text, body
    return body[:size].decode("utf-8", "surrogatepass"), body[size:]


def sent_back(letter: Letter, queues: Queues, frame_max: int) -> Outgoing | None:
    """Return the message of *letter* as it goes back to its queue: with a new id, so that nothing known about
    the old one applies. None when its headers leave no room for additional ones."""
    dead = letter.dead
    more: dict[str, Any] = {REDELIVERED: True}
    header = content_header(dead.headers, dead.properties, len(dead.body), task_id(), letter.priority, more)
    if len(header) > largest_header(frame_max):
        logger.error("dead letter %d cannot be sent back: its headers have %d bytes", dead.tag, len(header))
        return None
    return Outgoing(queues.prefix + dead.queue, header, dead.body)


# -- AMQPLetters --


class AMQPLetters(Letters):
    """kind: whose queue is read. publisher: of this process. Each call takes all of them."""

    portion = sys.maxsize

    def __init__(self, kind: Kind, server: Server, publisher: Publisher) -> None:
        self._queue = PLACES[kind]
        self._server = server
        self._publisher = publisher

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        with all_letters(self._server, self._queue) as found:
            letters = [letter.dead for letter in found.letters if queue is None or letter.dead.queue == queue]
        letters.reverse()
        return page_of(letters, limit, after)

    def retry(self, tags: Sequence[int] | None = None) -> int:
        with all_letters(self._server, self._queue) as found:
            chosen = found.chosen(tags)
            back = [(letter, sent_back(letter, self._server.queues, found.frame_max)) for letter in chosen]
            messages = [message for _, message in back if message is not None]
            self._publisher.send(messages, self._server.timeout)
            return found.remove([letter for letter, message in back if message is not None])

    def send_again(self, calls: Sequence[Again]) -> int:
        """See Letters.send_again(), but in two steps: a crash between them leaves a message both sent and
        kept."""
        prefix, now = self._server.queues.prefix, self._server.clock.now()
        with all_letters(self._server, self._queue) as found:
            letters = {letter.dead.tag: letter for letter in found.letters}
            sent, messages = [], []
            for call in calls:
                letter = letters.pop(call.tag, None)
                if letter is None:
                    continue
                sent.append(letter)
                again = Envelope(letter.dead.queue, call.headers, call.properties, call.body, letter.priority)
                messages.append(outgoing(again, task_id(), prefix, now))
            self._publisher.send(messages, self._server.timeout)
            return found.remove(sent)

    def discard(self, tags: Sequence[int] | None = None) -> int:
        with all_letters(self._server, self._queue) as found:
            return found.remove(found.chosen(tags))

    def push(self, letters: Sequence[Dead]) -> None:
        queues, frame_max = self._server.queues, self._publisher.frame_max
        messages = [as_letter(self._queue, letter, queues, task_id(), 0, {}, frame_max) for letter in letters]
        self._publisher.send(messages, self._server.timeout)
