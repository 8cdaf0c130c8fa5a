"""The route of a delayed message through RabbitMQ: the queues in which it waits, one after another.

Comes from:  ``publisher.py``.
Goes to:     exchanges and routing keys; ``publisher.py`` creates what they name.
Thread:      any; pure.

RabbitMQ expires messages only at the head of a queue, so all messages in one queue must wait equally long.
Therefore the remaining time is written in hexadecimal digits, in tenths of a second. For each digit except 0
at each place there is a queue that holds messages for that time and then passes them to the exchange of the
next lower place. The routing key consists of the digits and the target. A message passes one queue for each
digit that is not 0: two if less than half a minute is left, and at most six.

The queues are permanent quorum queues: they pass a message on with at-least-once dead-lettering, which keeps
it until the next queue has it on disk. A classic queue does not wait for that, and a server that is killed
loses what it passed on in the last seconds. Even a quorum queue loses messages when its server is killed
within half a second of the queue's creation, so a queue for each moment would not work either.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

UNIT = 100
"""Milliseconds of a digit 1 in the last place, which has the number 0."""
PLACES = 6
BASE = 16
PREFIX = "qworker.delay."
"""Prefix of all exchanges and queues on the route."""
MARGIN = 100
"""Milliseconds allowed for transport: a message arrives at a worker earlier by as much, and by less than a
UNIT, and the worker waits for the rest."""
LONGEST = (BASE**PLACES - 1) * UNIT + MARGIN
"""Milliseconds, about 19 days: a message due later is put back after that time."""
DUE_EXCHANGE = PREFIX + "due"
"""The exchange for messages that have waited; the target queues are bound to it."""
LOST_EXCHANGE = PREFIX + "lost"
"""The exchange for messages whose target is gone; it leads to the dead letters."""
NOWHERE = PREFIX + "nowhere"
"""The exchange for messages whose dead letters are gone too, and the queue that keeps them for some days."""
MOST_BYTES = 255 - 2 * PLACES
"""The part of a routing key left by the digits."""


class Route(NamedTuple):
    """exchange: where the message is published. key: its routing key."""

    exchange: str
    key: str


def route_of(target: str, due: float, now: float) -> Route | None:
    """Return the route of a message due in the queue *target* (its name in the server) at epoch second *due*,
    when it is *now*; None when it need not wait."""
    units = _units(due, now)
    if units <= 0:
        return None
    digits = f"{units:0{PLACES}x}"
    return Route(exchange(places(due, now) - 1), f"{'.'.join(digits)}.{word(target)}")


def places(due: float, now: float) -> int:
    """Return how many digits that route has, from the first that is not 0; 0 when there is none."""
    return -(-max(0, _units(due, now)).bit_length() // 4)


def _units(due: float, now: float) -> int:
    return (int(min((due - now) * 1000, LONGEST)) - MARGIN) // UNIT


def exchange(place: int) -> str:
    """Return the exchange for messages whose next digit is in *place*; DUE_EXCHANGE after the last."""
    return f"{PREFIX}{place}" if place >= 0 else DUE_EXCHANGE


def queue(place: int, digit: int) -> str:
    """Return the queue where messages wait for *digit* in *place*."""
    return f"{PREFIX}{place}.{digit:x}"


def milliseconds(place: int, digit: int) -> int:
    """Return how long they wait there."""
    return digit * (UNIT << 4 * place)


def pattern(place: int, digit: int) -> str:
    """Return a pattern for routing keys with *digit* in *place*."""
    return f"{'*.' * (PLACES - 1 - place)}{digit:x}.#"


def binding(target: str) -> str:
    """Return a pattern for routing keys of messages for *target*."""
    return f"{'*.' * PLACES}{word(target)}"


def word(target: str) -> str:
    """Return the word for *target* in routing keys: its name, if that fits and would match nothing but
    itself."""
    name = target.encode("utf-8", "surrogatepass")
    if len(name) <= MOST_BYTES and not {"*", "#"} & set(target.split(".")):
        return target
    return blake2b(name, digest_size=16).hexdigest()


def word_of(key: str) -> str:
    """Return the word for the target in the routing key *key*."""
    return key.split(".", PLACES)[-1]
