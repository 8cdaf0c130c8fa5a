"""How messages leave a consumer: deleted, or given back.

Comes from:  the consumer.
Goes to:     ``queue.py``.
Thread:      the listener's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qworker.transports.kombu.holdings import Held
from qworker.transports.visibility.queue import by_queue

logger = logging.getLogger(__name__)


class Parting(NamedTuple):
    """What is to leave us: back to the server for *delay* seconds, or, when that is None, for ever."""

    held: Held
    delay: int | None


def part(partings: Sequence[Parting]) -> Iterator[Parting]:
    """Carry out *partings*, and yield each that is done."""
    kinds: dict[int | None, dict[int, Parting]] = {}
    for parting in partings:
        kinds.setdefault(parting.delay, {})[id(parting.held.message)] = parting
    for delay, ones in kinds.items():
        for queue, batch in by_queue(parting.held.message for parting in ones.values()):
            if delay is None:
                for lost in queue.delete(batch):
                    logger.warning("message %s of %s ended after its lease; it may "
                                   "run again", lost.delivery_tag, queue.name)  # fmt: skip
            else:
                queue.give_back(batch, delay)
            yield from (ones[id(message)] for message in batch)
