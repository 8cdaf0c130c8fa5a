"""How messages leave a consumer: deleted, or given back.

Comes from:  the consumer, and its polls, when they end.
Goes to:     ``queue.py``.
Thread:      the listener's; a poll's, for what comes too late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from qworker.transports.held.queue import NotAll, Received, RemoteQueue, by_queue
from qworker.transports.kombu.consumer import End
from qworker.transports.kombu.holdings import Held
from qworker.transports.lease import Release
from qworker.transports.own_headers import DUE


def whole_seconds(until: float, now: float) -> int:
    """Whole seconds from *now*, and never too few."""
    return max(0, math.ceil(until - now))


def goes_back(held: Held, release: Release, now: float) -> bool:
    """Whether the server can keep *held* until it is due again, as it is."""
    due, queue = release.due, held.message.queue
    if due is None or held.sent or release.counted or release.requeued or release.redelivered:
        return False
    says = held.own.get(DUE, 0.0)
    return type(says) in (int, float) and says <= due and whole_seconds(due, now) <= queue.longest_return


class Parting(NamedTuple):
    """What is to leave us: back to the server for *delay* seconds, or, when that is None, for ever."""

    held: Held
    delay: int | None


def partings_of(ends: Iterable[End], now: float) -> list[Parting]:
    """What is to be done with those that neither wait here nor were sent."""
    return [
        Parting(held, None if not back else 0 if due is None else whole_seconds(due, now))
        for held, due, back in ends
        if back or due is None
    ]


def part(partings: Sequence[Parting]) -> Iterator[tuple[Parting, bool]]:
    """Carry out *partings*, and yield each that is done, and whether that came too late: others have it."""
    kinds: dict[int | None, dict[int, Parting]] = {}
    for parting in partings:
        kinds.setdefault(parting.delay, {})[id(parting.held.message)] = parting
    for delay, ones in kinds.items():
        for queue, batch in by_queue(parting.held.message for parting in ones.values()):
            late: set[int] = set()
            try:
                if delay is None:
                    late = _delete(queue, batch)
                else:
                    give_back(queue, batch, delay)
            except NotAll as error:
                yield from ((ones[id(message)], False) for message in error.divide(batch)[0])
                raise error.reason from error.reason.__cause__
            yield from ((ones[id(message)], id(message) in late) for message in batch)


def _delete(queue: RemoteQueue, batch: Sequence[Received]) -> set[int]:
    """Delete *batch*; return the id() of each that others have. What is gone though nobody else could have
    it yet was deleted before, when no answer came."""
    again = {id(message) for message in batch if message.deleted}
    for message in batch:
        message.deleted = True
    gone = queue.delete(batch)
    now = time.monotonic()
    return {id(message) for message in gone if message.expires <= now or id(message) not in again}


def give_all_back(messages: Iterable[Received]) -> None:
    """Let others have *messages* now; see give_back()."""
    for queue, batch in by_queue(messages):
        give_back(queue, batch)


def give_back(queue: RemoteQueue, batch: Sequence[Received], delay: int = 0) -> None:
    """As RemoteQueue.give_back, but what may have been given back before, others may have by now. If it was
    not, it comes back when its lease is over."""
    now = time.monotonic()
    places = [place for place, message in enumerate(batch) if message.is_kept(now)]
    if not places:
        return
    try:
        queue.give_back([batch[place] for place in places], delay)
    except NotAll as error:
        raise NotAll((places[place] for place in error.left), error.reason) from None
    except BaseException:
        for place in places:
            batch[place].may_be_back(now + delay)
        raise
