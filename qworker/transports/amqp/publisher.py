"""The publishing side of RabbitMQ: the server confirms messages before push returns.

Comes from:  ``broker.py``; ``consumer.py``, which sends messages that it does not settle in place.
Goes to:     a separate Link, so that an alarm that stops publishers does not stop workers.
Thread:      any, one at a time; callers that wait together share one round of confirms.

AMQP cannot store several messages atomically: when only some of a push were confirmed, it raises, and calling
again may send some twice. So a large push may as well be sent in portions, each with the full time limit:
very many messages need no longer limit, and others' messages can go in between.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from amqp.exceptions import ChannelError

from qworker.errors import BrokerUnavailable, QueueNotFound
from qworker.interrupts import LockTimeout, in_helper_thread, with_lock
from qworker.process.crash_points import crash_point
from qworker.process.group_commit import Line, Pending
from qworker.transports.amqp.codec import content_header, message_frames, publish_method
from qworker.transports.amqp.delays import (
    BASE,
    DUE_EXCHANGE,
    LOST_EXCHANGE,
    NOWHERE,
    binding,
    exchange,
    milliseconds,
    pattern,
    places,
    queue,
    route_of,
    word,
    word_of,
)
from qworker.transports.amqp.link import Link
from qworker.transports.amqp.outgoing import Outgoing, too_large
from qworker.transports.amqp.queues import DEAD
from qworker.transports.amqp.server import Server

BIND_SECONDS = 60.0
"""How long a binding is assumed to exist. It is deleted with its queue, which anybody may delete and create
again."""
MOST_BOUND = 10_000
"""Maximum remembered targets."""
NOWHERE_MILLISECONDS = 7 * 86400 * 1000
_NEVER = ("", -math.inf)


class DelayQueues:
    """The exchanges and queues in which delayed messages wait, created on first use.

    They are shared by all users of a virtual host, whatever the prefix of their queues, and are never
    deleted. Each target is bound to the last exchange; the dead letters of its prefix are bound to the
    exchange for messages whose target is gone. dead: the server's name of the dead letters.
    """

    def __init__(self, dead: str) -> None:
        self.dead = dead
        self._places = 0
        """How many places have queues."""
        self._bound: dict[str, tuple[str, float]] = {}
        """For each target's word: its name, and the monotonic second when it was bound."""

    def unbound(self, targets: Iterable[str]) -> set[str]:
        """Return those *targets* that must be bound before sending to them."""
        fresh = time.monotonic() - BIND_SECONDS
        return {target for target in targets if self._bound.get(word(target), _NEVER)[1] <= fresh}

    def prepare(self, link: Link, unbound: Collection[str], places: int) -> None:
        """Create a route of *places*, and bind it to the queues *unbound*, which exist, as do the dead
        letters. BrokerUnavailable when the server refuses it."""
        if places <= self._places and not unbound:
            return
        channel = link.channel()
        try:
            if not self._places:
                _declare_ends(link, channel)
            for place in range(self._places, places):
                _declare_place(link, channel, place)
            for target in unbound:
                link.call(channel.queue_bind, self.dead, LOST_EXCHANGE, binding(target))
                link.call(channel.queue_bind, target, DUE_EXCHANGE, binding(target))
            link.call(channel.close)
        except ChannelError as error:
            raise BrokerUnavailable(
                f"RabbitMQ at {link.address.shown} does not create queues for delayed messages: "
                f"{error.reply_text}. It must have version 3.10 or later, its user the rights to configure, "
                "write and read, and other users must not have queues and exchanges of these names"
            ) from None
        self._places = max(places, self._places)
        if len(self._bound) > MOST_BOUND:
            self._bound = {}
        self._bound.update({word(target): (target, time.monotonic()) for target in unbound})

    def target_of(self, returned: str) -> str:
        """Return the server's name of the target with the word *returned*."""
        return self._bound.get(returned, _NEVER)[0]

    def forget(self) -> None:
        """Forget what exists: it may have been deleted."""
        self._places, self._bound = 0, {}


def _declare_ends(link: Link, channel: Any) -> None:
    """Create the exchanges for messages that have waited. Every queue must have an exit: otherwise it would
    block all others."""
    link.call(
        channel.queue_declare, NOWHERE, durable=True, auto_delete=False,
        arguments={"x-message-ttl": NOWHERE_MILLISECONDS},
    )  # fmt: skip
    for name, kind, otherwise in (
        (NOWHERE, "fanout", None), (LOST_EXCHANGE, "topic", NOWHERE), (DUE_EXCHANGE, "topic", LOST_EXCHANGE)
    ):  # fmt: skip
        arguments = {} if otherwise is None else {"alternate-exchange": otherwise}
        link.call(channel.exchange_declare, name, kind, durable=True, auto_delete=False, arguments=arguments)
    link.call(channel.queue_bind, NOWHERE, NOWHERE)


def _declare_place(link: Link, channel: Any, place: int) -> None:
    """Create the exchange and the queues of *place*, without waiting for each answer: there are many, and a
    later answer reports an error of any."""
    here, below = exchange(place), exchange(place - 1)
    link.call(channel.exchange_declare, here, "topic", durable=True, auto_delete=False)
    link.call(channel.exchange_bind, below, here, pattern(place, 0))
    for digit in range(1, BASE):
        name = queue(place, digit)
        arguments: dict[str, Any] = {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",  # required by at-least-once; nothing limits the queue
            "x-dead-letter-exchange": below,
            "x-message-ttl": milliseconds(place, digit),
        }
        link.call(
            channel.queue_declare, name, durable=True, auto_delete=False, arguments=arguments, nowait=True
        )
        link.call(channel.queue_bind, name, here, pattern(place, digit), nowait=True)
    link.call(channel.exchange_declare, here, "topic", durable=True, auto_delete=False)


logger = logging.getLogger(__name__)

WRITE_BYTES = 32 * 1024
"""Bytes sent before confirms are read: otherwise both sides could wait for each other. It is small, so that
the server is busy while the next headers are made."""
PORTION = 2000
"""Messages of one push that are confirmed together."""
DELAYED_TOGETHER = 1000
"""Delayed messages sent before waiting for their confirms. Their delay starts when the server gets them, so
they must not wait in transit."""

TURN_SECONDS = 0.5
"""How long is_taken() waits for another thread that is sending."""
_PROBE = publish_method("", "", False)
"""Publishes to the empty name, which no queue has."""
_NOTHING = content_header("{}", None, 0, "probe")


class _ReturnedError(Exception):
    """No queue accepted some messages. queues: their destinations."""

    def __init__(self, queues: set[str]) -> None:
        super().__init__(queues)
        self.queues = queues


class Confirms:
    """The server's answers to the messages sent on a channel; sent: their number."""

    def __init__(self) -> None:
        self.sent = self._confirmed = 0
        self._above: set[int] = set()
        """Answers that came before those to earlier messages."""
        self.refused = False
        """Whether a message was refused, since this was last set to False."""

    @property
    def complete(self) -> bool:
        """Whether all messages were answered."""
        return self._confirmed >= self.sent

    def add(self, number: int, multiple: bool, stored: bool) -> None:
        """Record an answer to message *number*, and with *multiple* to all before it."""
        if not stored:
            self.refused = True
        above = self._above
        if multiple:
            if number > self._confirmed:
                self._confirmed = number
                if above:
                    self._above = above = {one for one in above if one > number}
        elif number == self._confirmed + 1:
            self._confirmed = number
        elif number > self._confirmed:
            above.add(number)
        while self._confirmed + 1 in above:
            self._confirmed += 1
            above.remove(self._confirmed)


class Publisher:
    """confirms: wait for publisher confirms."""

    def __init__(self, server: Server, confirms: bool) -> None:
        self._server = server
        self._queues = server.queues
        self._waits = confirms
        self.frame_max = 131072
        """Bytes, as negotiated with the server; before that, its default."""
        self.lock = threading.Lock()
        self._line: Line[Outgoing] = Line(self, self._serve, "RabbitMQ")
        self._link: Link | None = None  # under lock, as all below
        self._whole = True
        """Whether the last use of the link was completed."""
        self._confirms = Confirms()
        self._returned: set[str] = set()
        self._declared: set[str] = set()
        self._delays = DelayQueues(self._queues.prefix + DEAD)
        self._methods: dict[str, bytes] = {}

    def after_fork(self) -> None:
        """In a forked child: everything belongs to the parent."""
        if self._link is not None:
            self._link.abandon()
        self.lock = threading.Lock()
        self._line.forget()
        self._link = None

    # -- sending --

    def send(self, messages: Sequence[Outgoing], timeout: float) -> None:
        """Send *messages*; they are confirmed when this returns. BrokerUnavailable when that takes longer
        than *timeout* seconds for each PORTION; QueueNotFound when a queue does not exist and cannot be
        created."""
        for start in range(0, len(messages), PORTION):
            try:
                self._line.push(messages[start : start + PORTION], timeout)
            except BrokerUnavailable as error:
                if not start:
                    raise
                raise BrokerUnavailable(
                    f"{start} of {len(messages)} messages were published; of the rest: {error}"
                ) from error

    def is_taken(self) -> bool:
        """Whether the server accepts messages now; False during an alarm, or while another thread sends for
        long. The server only reports an alarm to publishers: so an unroutable message is sent first, to be
        blocked instead of an important one. Raises BrokerUnavailable when the server does not answer."""
        try:
            return with_lock(self.lock, TURN_SECONDS, self._takes)
        except LockTimeout:
            return False

    def _takes(self) -> bool:
        deadline = time.monotonic() + self._server.timeout
        link = self._opened(deadline, wait=False)
        if link.blocked or not self._waits:
            return not link.blocked
        self._whole = False
        try:
            self._write(link, message_frames(1, _PROBE, _NOTHING, b"", link.connection.frame_max), deadline)
            self._confirms.sent += 1
            self._await_confirms(link, deadline, until_blocked=True)
        except BrokerUnavailable:
            self._whole = True  # otherwise it is closed
            raise
        except BaseException:
            link.drop()
            raise
        self._whole = True
        return not link.blocked

    def _serve(self, batch: list[Pending[Outgoing]], deadline: float) -> None:
        """Send the whole batch, and mark each with its outcome."""
        error: Exception | None = None
        returned: set[str] = set()
        try:
            batch = self._without_too_large(batch, deadline)
            self._deliver([message for pending in batch for message in pending.items], deadline)
        except _ReturnedError as unroutable:
            returned = unroutable.queues
        except Exception as failure:  # noqa: BLE001 - every caller gets it
            error = failure
        for pending in batch:
            lost = returned & {message.queue for message in pending.items}
            pending.error = error or (self._not_found(lost) if lost else None)
            pending.done = True

    def _not_found(self, queues: set[str]) -> QueueNotFound:
        names = ", ".join(repr(queue) for queue in sorted(queues))
        return QueueNotFound(
            f"RabbitMQ returned the message: queue {names} does not exist, or was deleted at once"
        )

    def _without_too_large(self, batch: list[Pending[Outgoing]], deadline: float) -> list[Pending[Outgoing]]:
        """Return *batch* without pushes that the server would never accept: their callers get an error, and
        nothing is sent."""
        found = []
        for pending in batch:
            if any(message.large for message in pending.items):
                self._opened(deadline)  # then the maximum size of frames is known
                pending.error = too_large(pending.items, self.frame_max)
            if pending.error is None:
                found.append(pending)
            else:
                pending.done = True
        return found

    def _deliver(self, messages: Sequence[Outgoing], deadline: float) -> None:
        try:
            self._transmit(messages, deadline)
        except _ReturnedError as unroutable:
            # The queue, or one on the route, was deleted since we checked: try once more, with a new one.
            self._declared -= unroutable.queues
            self._delays.forget()
            again = [message for message in messages if message.queue in unroutable.queues]
            self._transmit(again, deadline)

    def _transmit(self, messages: Sequence[Outgoing], deadline: float) -> None:
        link = self._opened(deadline)
        self._whole = False
        try:
            self._transmit_on(link, messages, deadline)
        except (BrokerUnavailable, QueueNotFound):
            self._whole = True  # otherwise it is closed
            raise
        except BaseException:  # an interrupt: nobody can continue a half sent, or half confirmed, message
            link.drop()
            raise
        self._whole = True
        if self._confirms.refused:
            raise BrokerUnavailable(
                f"RabbitMQ at {link.address.shown} refused a message (nack): its queue is full or failing"
            )
        if self._returned:
            raise _ReturnedError(self._returned)

    def _transmit_on(self, link: Link, messages: Sequence[Outgoing], deadline: float) -> None:
        self._prepare(link, messages, deadline)
        confirms = self._confirms
        confirms.refused = False
        self._returned = set()
        crash_point("publishing")
        parts: list[bytes] = []
        size = delayed = 0
        for message in messages:
            header, due = message.header, message.due
            if due is None:
                method = self._methods.get(message.queue)
                if method is None:
                    method = self._methods[message.queue] = publish_method("", message.queue, True)
            else:
                first, key = route_of(message.queue, due, self._server.clock.now()) or ("", message.queue)
                method = publish_method(first, key, True)
                delayed += 1
            if not isinstance(header, bytes):
                header = header()
            parts.append(message_frames(1, method, header, message.body, link.connection.frame_max))
            size += len(parts[-1])
            confirms.sent += 1
            if size >= WRITE_BYTES or delayed >= DELAYED_TOGETHER:
                self._write(link, b"".join(parts), deadline)
                if delayed and self._waits:
                    self._await_confirms(link, deadline)
                parts, size, delayed = [], 0, 0
        if parts:
            self._write(link, b"".join(parts), deadline)
        if self._waits:
            self._await_confirms(link, deadline)
        crash_point("published")

    def _write(self, link: Link, data: bytes, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            link.drop()
            raise BrokerUnavailable(self._silence(link))
        try:
            link.write(data, left)
        except BrokerUnavailable:
            if time.monotonic() >= deadline:
                raise BrokerUnavailable(self._silence(link)) from None
            raise
        while link.read(0):
            pass

    def _await_confirms(self, link: Link, deadline: float, until_blocked: bool = False) -> None:
        last_received = time.monotonic()
        while not self._confirms.complete and not (until_blocked and link.blocked):
            now = time.monotonic()
            dead = last_received + self._server.silent_seconds if not link.blocked else math.inf
            if now >= min(deadline, dead):
                silence = self._silence(link)
                link.drop()  # further confirms are not waited for
                raise BrokerUnavailable(silence)
            if link.read(min(deadline, dead) - now):
                last_received = time.monotonic()

    def _silence(self, link: Link) -> str:
        why = f": {link.blocked}" if link.blocked else ""
        return f"RabbitMQ at {link.address.shown} did not confirm in time{why}; it may have been published"

    # -- the link --

    def _opened(self, deadline: float, wait: bool = True) -> Link:
        """Return the link, ready to send. BrokerUnavailable when there is none, or it is blocked until
        *deadline*.
        wait: if False, it may be blocked."""
        link = self._link
        if link is not None and not self._whole:
            link.drop()
        if link is not None and link.alive:
            try:
                while link.read(0):
                    pass  # also notices a closed connection
            except BrokerUnavailable:
                pass
        if link is None or not link.alive:
            link = self._open(deadline)
        while link.blocked and wait:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BrokerUnavailable(
                    f"RabbitMQ at {link.address.shown}: {link.blocked}; nothing was published"
                )
            link.read(left)
        return link

    def _open(self, deadline: float) -> Link:
        self._link = None
        link = in_helper_thread(lambda: self._server.connect(max(0.1, deadline - time.monotonic())))
        self._confirms = Confirms()
        link.on_confirm = self._confirms.add
        link.on_return = self._note_return
        self._declared = set()
        self._delays.forget()
        self._methods = {}
        self._whole = True
        channel = link.channel()
        if channel.channel_id != 1:
            raise BrokerUnavailable("RabbitMQ gave an unexpected channel")
        if self._waits:
            link.call(channel.confirm_select)
        self._link = link
        self.frame_max = link.connection.frame_max
        return link

    def _prepare(self, link: Link, messages: Sequence[Outgoing], deadline: float) -> None:
        """Create the queues that *messages* go to, and those in which they wait."""
        delayed = []
        for message in messages:
            if message.queue not in self._declared:
                self._declare(link, message.queue, deadline)
            if message.due is not None:
                delayed.append(message)
        if delayed:
            self._prepare_delays(link, delayed, deadline)

    def _prepare_delays(self, link: Link, messages: Sequence[Outgoing], deadline: float) -> None:
        latest = max(message.due or 0.0 for message in messages)
        needed = places(latest, self._server.clock.now())
        if not needed:
            return
        unbound = self._delays.unbound({message.queue for message in messages})
        if unbound:
            for queue in (*unbound, self._delays.dead):  # deleting a queue deletes its binding
                self._declare(link, queue, deadline)
        link.timeout = max(0.1, deadline - time.monotonic())
        self._delays.prepare(link, unbound, needed)

    def _declare(self, link: Link, queue: str, deadline: float) -> None:
        link.timeout = max(0.1, deadline - time.monotonic())
        self._queues.declare(link, queue.removeprefix(self._queues.prefix))
        self._declared.add(queue)

    def _note_return(self, exchange: str, key: str) -> None:
        self._returned.add(self._delays.target_of(word_of(key)) if exchange else key)

    def targets(self) -> set[str]:
        """Return the queues that were published to."""
        return {name.removeprefix(self._queues.prefix) for name in list(self._methods)}

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        with_lock(self.lock, None, self._let_go)

    def _let_go(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
