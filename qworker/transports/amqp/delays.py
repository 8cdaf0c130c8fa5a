"""The way of a delayed message through RabbitMQ: the queues in which it waits, one after another.

Comes from:  ``publisher.py``.
Goes to:     exchanges and routing keys; ``delay_queues.py`` makes what they name.
Thread:      any; pure.

RabbitMQ lets messages expire only at the head of a queue, so all that wait in one queue must wait equally
long. The time that is left is therefore written in hexadecimal digits, in tenths of a second. For each digit
but 0 of each place there is a queue that holds messages for just so long and then hands them to the exchange
of the next lower place. The routing key is the digits and the target. A message passes one queue for each
digit that is not 0: two where less than half a minute is left, and six at most.

The queues are quorum queues, and stay: they hand a message on with at-least-once dead-lettering, which keeps
it until the next queue has it on disk. A classic queue does not wait for that, and a server that is killed
loses what it handed on in the last seconds. Even a quorum queue loses what it holds when its server is killed
within half a second of the queue's making, so there is no queue for each moment either.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

UNIT = 100
"""Milliseconds that a digit 1 in the last place, which has the number 0, stands for."""
PLACES = 6
BASE = 16
PREFIX = "qworker.delay."
"""Of the names of all exchanges and queues on the way."""
MARGIN = 100
"""Milliseconds that a message has for its way: it comes to a worker earlier by as much, and by less than a
UNIT, and the worker waits for the rest."""
LONGEST = (BASE**PLACES - 1) * UNIT + MARGIN
"""Milliseconds, some 19 days: what is due later is put back once it has waited so long."""
DUE_EXCHANGE = PREFIX + "due"
"""The exchange that hands out what has waited, to the queues that are bound to it."""
LOST_EXCHANGE = PREFIX + "lost"
"""The exchange of what finds its target gone; it goes to the dead letters."""
NOWHERE = PREFIX + "nowhere"
"""The exchange of what finds these dead letters gone too, and the queue in which it is kept for some days."""
MOST_BYTES = 255 - 2 * PLACES
"""What the digits leave of a routing key."""


class Way(NamedTuple):
    """exchange: where the message is published. key: its routing key."""

    exchange: str
    key: str


def way(target: str, due: float, now: float) -> Way | None:
    """The way of a message that is due in the queue *target* (its name in the server) at epoch second *due*,
    when it is *now*; None when it need not wait."""
    units = _units(due, now)
    if units <= 0:
        return None
    digits = f"{units:0{PLACES}x}"
    return Way(exchange(places(due, now) - 1), f"{'.'.join(digits)}.{word(target)}")


def places(due: float, now: float) -> int:
    """How many digits that way has, beginning with the first that is not 0; 0 when there is none."""
    return -(-max(0, _units(due, now)).bit_length() // 4)


def _units(due: float, now: float) -> int:
    return (int(min((due - now) * 1000, LONGEST)) - MARGIN) // UNIT


def exchange(place: int) -> str:
    """Of the messages for which the digit in *place* comes next; DUE_EXCHANGE after the last."""
    return f"{PREFIX}{place}" if place >= 0 else DUE_EXCHANGE


def queue(place: int, digit: int) -> str:
    """Where messages wait for *digit* in *place*."""
    return f"{PREFIX}{place}.{digit:x}"


def milliseconds(place: int, digit: int) -> int:
    """How long they wait there."""
    return digit * (UNIT << 4 * place)


def pattern(place: int, digit: int) -> str:
    """Matches the routing keys with *digit* in *place*."""
    return f"{'*.' * (PLACES - 1 - place)}{digit:x}.#"


def binding(target: str) -> str:
    """Matches the routing keys of messages for *target*."""
    return f"{'*.' * PLACES}{word(target)}"


def word(target: str) -> str:
    """What stands for *target* in routing keys: its name, if that fits and would match nothing but itself."""
    name = target.encode("utf-8", "surrogatepass")
    if len(name) <= MOST_BYTES and not {"*", "#"} & set(target.split(".")):
        return target
    return blake2b(name, digest_size=16).hexdigest()


def word_of(key: str) -> str:
    """The word for the target in the routing key *key*."""
    return key.split(".", PLACES)[-1]
