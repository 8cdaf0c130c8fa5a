"""The exchanges and queues of RabbitMQ in which delayed messages wait, created on first use.

Comes from:  ``publisher.py``, before it sends a delayed message; ``queues.py``, which binds new queues.
Goes to:     the server, over their links.
Thread:      the publisher's lock holder.

They are shared by all users of a virtual host, whatever the prefix of their queues, and are never deleted.
Each target is bound to the last exchange; the dead letters of its prefix are bound to the exchange for
messages whose target is gone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import Any

from amqp.exceptions import ChannelError

from qworker.errors import BrokerUnavailable
from qworker.transports.amqp.delays import (
    BASE,
    DUE_EXCHANGE,
    LOST_EXCHANGE,
    NOWHERE,
    binding,
    exchange,
    milliseconds,
    pattern,
    queue,
    word,
)
from qworker.transports.amqp.link import Link

BIND_SECONDS = 60.0
"""How long a binding is assumed to exist. It is deleted with its queue, which anybody may delete and create
again."""
MOST_BOUND = 10_000
"""Maximum remembered targets."""
NOWHERE_MILLISECONDS = 7 * 86400 * 1000
_NEVER = ("", -math.inf)


class DelayQueues:
    """The known part of the delay queues, over one link. dead: the server's name of the dead letters."""

    def __init__(self, dead: str) -> None:
        self._dead = dead
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
                link.call(channel.queue_bind, self._dead, LOST_EXCHANGE, binding(target))
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
