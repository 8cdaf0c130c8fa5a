"""Holdings: the messages that a consumer has got and not acknowledged.

Comes from:  the consumer, which gets them.
Goes to:     the worker, when they are due; what comes with a settlement is told from what ended long ago.
Thread:      the listener's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from qworker.transports.kombu.messages import leased, read, with_way_back
from qworker.transports.lease import Leased
from qworker.transports.own_headers import KEPT

FULL_SECONDS = 1.0
"""How long nothing more is got once as many messages wait here as may."""


class Held(NamedTuple):
    """A message that was got and not acknowledged. own: its headers that are ours. sent: whether it was sent
    anew by now, so that all that is left to do is to acknowledge it."""

    message: Any
    leased: Leased
    own: dict[str, Any]
    message_id: str | None
    sent: bool = False


class Holdings:
    """eta_limit: how many messages may wait here until they are due."""

    def __init__(self, eta_limit: int) -> None:
        self._eta_limit = eta_limit
        self._order = count()
        self._full_until = 0.0
        self.forget()

    def forget(self) -> None:
        """Hold nothing."""
        self.leased: dict[int, Held] = {}
        """By tag: what the worker has."""
        self.ended: set[int] = set()
        """Tags that a settlement has ended which raised; it will be repeated."""
        self.late: set[int] = set()
        """Tags of what others had when it was to end, until settle() has said so."""
        self._tags: set[int] = set()  # of all that is leased or waits
        self._waiting: list[tuple[float, int, Held]] = []  # heap of (due, order, …)

    def new_tag(self, tag: int) -> int:
        """*tag*, or another one where a message of that tag is here: the same was sent twice."""
        while tag in self._tags:
            tag = tag % (2**63 - 1) + 1
        self._tags.add(tag)
        self.late.discard(tag)
        return tag

    @property
    def full(self) -> bool:
        """Whether nothing more is to be got for a moment."""
        return time.monotonic() < self._full_until

    def has_room(self, besides: int = 0) -> bool:
        """Whether one more may wait here, with so many others that are about to; else we are full."""
        if len(self._waiting) + besides < self._eta_limit:
            return True
        self._full_until = time.monotonic() + FULL_SECONDS
        return False

    def wait_until(self, due: float, held: Held) -> None:
        """Keep *held* here until it is due."""
        heappush(self._waiting, (due, next(self._order), held))

    @property
    def next_due(self) -> float | None:
        """When the first that waits is due; None when none waits."""
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float, limit: int, until: float, delayed_limit: int) -> Iterator[Held]:
        """Up to *limit* that are due, and up to *delayed_limit* that are by *until*; the first due come
        first."""
        while self._waiting:
            due = self._waiting[0][0]
            if due <= now and limit > 0:
                limit -= 1
            elif now < due <= until and delayed_limit > 0:
                delayed_limit -= 1
            else:
                return
            yield heappop(self._waiting)[2]

    def end(self, held: Held) -> None:
        """Forget *held*, which is acknowledged or gone."""
        self.leased.pop(held.leased.tag, None)
        self._tags.discard(held.leased.tag)

    def of(self, message: Any, queue: str) -> Held:
        """*message*, which came from *queue*, under a tag of its own."""
        content = read(with_way_back(message, queue))
        tag = self.new_tag(content.tag)
        own = {name: value for name, value in content.own.items() if name in KEPT}
        return Held(message, leased(queue, content, tag), own, content.message_id)

    def everything(self) -> list[Held]:
        """All that is here."""
        return [*self.leased.values(), *(entry[2] for entry in self._waiting)]

    def lose(self, gone: set[int]) -> None:
        """Forget the messages whose id() is in *gone*: others have them."""
        for held in self.everything():
            if id(held.message) in gone:
                self.end(held)
        self._waiting = [entry for entry in self._waiting if id(entry[2].message) not in gone]
        heapify(self._waiting)

    def take_back(self, held: Held) -> None:
        """*held* is leased again: what was to end it did not happen."""
        self.leased[held.leased.tag] = held
        self._tags.add(held.leased.tag)
