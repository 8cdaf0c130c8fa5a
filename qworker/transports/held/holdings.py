"""Holdings: the messages that a consumer has taken and not finished, and how they leave it.

Comes from:  the consumer, which takes them.
Goes to:     the worker, when they are due; ``ServerQueue``, when they are finished or given back.
Thread:      the listener's; a poll's, for late messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from qworker.transports.held.messages import leased, read
from qworker.transports.held.port import NotAll, Received, ServerQueue, by_queue
from qworker.transports.lease import Leased
from qworker.transports.own_headers import KEPT

FULL_SECONDS = 1.0
"""Seconds for which no messages are taken after the limit of waiting ones was reached."""


class Holding(NamedTuple):
    """A message taken and not finished. own: its internal headers. sent: whether it was sent again already,
    so that it only has to be finished. changed: whether the server has it with other counts."""

    message: Received
    leased: Leased
    own: dict[str, Any]
    message_id: str | None
    sent: bool = False
    changed: bool = False


class End(NamedTuple):
    """The last action for *held*, after everything was sent: keep it until *due*, give it back to the server
    for *delay* seconds, or, with neither, finish it."""

    held: Holding
    due: float | None = None
    delay: int | None = None


class Holdings:
    """eta_limit: how many messages may wait here until they are due. monotonic: the clock of intervals."""

    def __init__(self, eta_limit: int, monotonic: Callable[[], float]) -> None:
        self._eta_limit = eta_limit
        self._monotonic = monotonic
        self._order = count()
        self._full_until = 0.0
        self.forget()

    def forget(self) -> None:
        """Forget all messages."""
        self.leased: dict[int, Holding] = {}
        """By tag: messages leased by the worker."""
        self.ended: set[int] = set()
        """Tags ended by a settle() that raised: it will be called again."""
        self.late: set[int] = set()
        """Tags of messages that others had when they were finished, until settle() has reported them."""
        self.in_doubt: set[int] = set()
        """Tags of late messages that may have been finished all the same, until the worker has asked."""
        self._tags: set[int] = set()  # of all that is leased or waits
        self._waiting: list[tuple[float, int, Holding]] = []  # heap of (due, order, …)

    def new_tag(self, tag: int) -> int:
        """Return *tag*, or another one if a message with that tag is here: it was sent twice."""
        while tag in self._tags:
            tag = tag % (2**63 - 1) + 1
        self._tags.add(tag)
        self.late.discard(tag)
        self.in_doubt.discard(tag)
        return tag

    @property
    def full(self) -> bool:
        """Whether no messages are taken for a moment, because the limit was reached."""
        return self._monotonic() < self._full_until

    def has_room(self, others: int = 0) -> bool:
        """Whether one more may wait here, if this number of others are about to; otherwise the
        limit is reached."""
        if len(self._waiting) + others < self._eta_limit:
            return True
        self._full_until = self._monotonic() + FULL_SECONDS
        return False

    def wait_until(self, due: float, held: Holding) -> None:
        """Keep *held* here until it is due."""
        heappush(self._waiting, (due, next(self._order), held))

    @property
    def next_due(self) -> float | None:
        """Return when the first waiting one is due; None when there is none."""
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float, limit: int, until: float, delayed_limit: int) -> Iterator[Holding]:
        """Yield up to *limit* messages that are due, and up to *delayed_limit* that are due by *until*, in
        the order of their due times."""
        while self._waiting:
            due = self._waiting[0][0]
            if due <= now and limit > 0:
                limit -= 1
            elif now < due <= until and delayed_limit > 0:
                delayed_limit -= 1
            else:
                return
            yield heappop(self._waiting)[2]

    def end(self, held: Holding) -> None:
        """Forget *held*, which is finished or gone."""
        self.leased.pop(held.leased.tag, None)
        self._tags.discard(held.leased.tag)

    def of(self, message: Received, queue: str) -> Holding:
        """Return *message* of *queue*, under a unique tag."""
        content = read(message)
        tag = self.new_tag(content.tag)
        own = {name: value for name, value in content.own.items() if name in KEPT}
        return Holding(message, leased(queue, content, tag), own, content.message_id)

    def everything(self) -> list[Holding]:
        """Return all messages here."""
        return [*self.leased.values(), *(entry[2] for entry in self._waiting)]

    def lose(self, gone: set[int]) -> None:
        """Forget the messages whose id() is in *gone*: others have them."""
        for held in self.everything():
            if id(held.message) in gone:
                self.end(held)
        self._waiting = [entry for entry in self._waiting if id(entry[2].message) not in gone]
        heapify(self._waiting)


# -- How they leave: finished, or given back --


def carry_out(ends: Sequence[End]) -> Iterator[tuple[End, bool]]:
    """Finish or give back according to *ends*, and yield each that is done, and whether it was too late:
    others have it. Those to be kept here are ignored."""
    kinds: dict[int | None, dict[int, End]] = {}
    for end in ends:
        kinds.setdefault(end.delay, {})[id(end.held.message)] = end
    for delay, ones in kinds.items():
        for queue, batch in by_queue(end.held.message for end in ones.values()):
            late: set[int] = set()
            try:
                if delay is None:
                    late = _finish(queue, batch)
                else:
                    give_back(queue, batch, delay)
            except NotAll as error:
                yield from ((ones[id(message)], False) for message in error.divide(batch)[0])
                raise error.reason from error.reason.__cause__
            yield from ((ones[id(message)], id(message) in late) for message in batch)


def _finish(queue: ServerQueue, batch: Sequence[Received]) -> set[int]:
    """Finish *batch*; return the id() of each that others have. A message that is missing, but cannot be
    reserved by another consumer yet, was finished by an earlier call whose answer was lost."""
    again = {id(message) for message in batch if message.deleted}
    for message in batch:
        message.deleted = True
    asked = time.monotonic()
    gone = queue.finish(batch)
    now = time.monotonic()
    for message in gone:
        message.in_doubt = asked < message.expires <= now
    return {id(message) for message in gone if message.expires <= now or id(message) not in again}


def give_all_back(messages: Iterable[Received]) -> None:
    """Let others have *messages* now; see give_back()."""
    for queue, batch in by_queue(messages):
        give_back(queue, batch)


def give_back(queue: ServerQueue, batch: Sequence[Received], delay: int = 0) -> None:
    """Like ServerQueue.give_back(), but a message that may have been given back before may belong to others
    by now. If it was not, it comes back when its lease expires."""
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


def whole_seconds(until: float, now: float) -> int:
    """Return the seconds from *now* to *until*, rounded up; 0 if it has passed."""
    return max(0, math.ceil(until - now))
