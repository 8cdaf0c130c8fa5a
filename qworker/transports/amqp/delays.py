"""Where a message waits in RabbitMQ until it is due: in a queue of all that leave at the same moment.

Comes from:  ``publisher.py``.
Goes to:     the names and arguments of queues.
Thread:      any; pure.

RabbitMQ lets messages expire only at the head of a queue, so what waits in one queue must expire together.
Time is divided into slots; a slot's queue belongs to one target, to which its messages are dead-lettered when
the slot begins, that is never after they are due, and the worker that gets them waits for the rest. Slots far
ahead are wide, so that queues stay few: a message that comes out of a wide slot early goes into a narrower
one. There are at most 256 slots for each width, and widths double. A queue goes away by itself once its slot
is long past.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

NARROWEST = 100
"""Milliseconds: how long before it is due a message may come to a worker, but for the margin."""
SLOTS = 256
LONGEST = 20 * 86400 * 1000
"""Milliseconds: what is due later is put back once it has waited so long. RabbitMQ takes times of ten years,
and those of Erlang's older timers had 32 bits; the queue is to be there for up to four times as long."""


MARGIN = 50
"""Milliseconds: how much later than asked for a message may be on its way out of such a queue."""


class Delay(NamedTuple):
    """A queue to wait in, what it is declared with, and until when, in epoch milliseconds."""

    queue: str
    arguments: dict[str, Any]
    begins: int


def delay(target: str, due: float, now: float) -> Delay | None:
    """Where a message for *target* waits until epoch second *due*; None when it need not wait."""
    now_ms = int(now * 1000)
    ahead = min(int(due * 1000) - now_ms, LONGEST)
    width = NARROWEST
    while width * SLOTS < ahead:
        width *= 2
    begins = (now_ms + ahead - MARGIN) // width * width
    if begins <= now_ms:
        return None
    arguments = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": target,
        "x-expires": 2 * width * SLOTS + 60_000,
    }
    name = f"qworker.delay.{width}.{begins}.{target}"
    if len(name.encode("utf-8", "surrogatepass")) > 255:
        digest = blake2b(target.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        name = f"qworker.delay.{width}.{begins}.{digest}"
    return Delay(name, arguments, begins)
