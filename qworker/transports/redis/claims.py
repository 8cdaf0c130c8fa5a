"""Claims of a consumer on Redis: the numbers that they give, what is held, and what may be held unknowingly.

Comes from:  ``consumer.py``, anew for each generation.
Goes to:     the arguments of ``scripts.LEASE``, and the messages in its answers.
Thread:      the listener's; pure.

A claim names the numbers that it will give to what it takes. When no answer comes, it is *orphaned*: whatever
has one of those numbers is ours without our knowing, and is to be given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qworker.transports.lease import MAX_LEASE_BYTES, Leased
from qworker.transports.redis.envelope import from_payload
from qworker.transports.redis.layout import Layout, whole

Numbers = tuple[int, int]
"""Those that a claim may give to what it takes: from, up to."""


class Answer(NamedTuple):
    """What LEASE has returned. next_due: of its queues. fields, payloads: of what it took, in its order."""

    next_due: float | None
    last_revocation: int
    fields: list[bytes]
    payloads: list[bytes]

    @classmethod
    def of(cls, reply: list[bytes]) -> Answer:
        due, revocation = reply[:2]
        return cls(float(due) if due else None, whole(revocation), reply[2::2], reply[3::2])


class Claims:
    """held: tag → field of ``unacked`` of each message on lease. orphaned: the numbers of claims of which no
    answer came."""

    def __init__(self, layout: Layout, generation: int) -> None:
        self._layout = layout
        self._generation = generation
        self._next_number = 0
        self.held: dict[int, bytes] = {}
        self.orphaned: list[Numbers] = []

    def prepare(
        self, queues: Sequence[str], limit: int, delayed_limit: int = 0, until: float = 0.0
    ) -> tuple[tuple[Any, ...], Numbers]:
        """The arguments of LEASE for a claim, and its numbers. until: epoch second for delayed ones."""
        first, self._next_number = self._next_number, self._next_number + limit + delayed_limit
        steps = self._layout.scale.steps
        arguments = (
            self._generation, limit, delayed_limit, repr(until), MAX_LEASE_BYTES, first, len(steps), *steps,
            *queues,
        )  # fmt: skip
        return arguments, (first, self._next_number)

    def take(self, answer: Answer) -> tuple[list[Leased], list[bytes]]:
        """The messages of *answer*, which are held from now on; and fields to acknowledge at once.

        These are of copies: a stock consumer took a message of ours for lost, and put it back.
        """
        names: dict[bytes, str] = {}
        copies, messages = [], []
        for field, payload in zip(answer.fields, answer.payloads, strict=True):
            queue = field.split(b":", 4)[4]
            name = names.get(queue) or names.setdefault(queue, queue.decode())
            message = from_payload(payload, self._layout.scale, name)
            if message.tag in self.held:
                copies.append(self.held[message.tag])
            self.held[message.tag] = field
            messages.append(message)
        return messages, copies
