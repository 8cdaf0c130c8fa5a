"""Administration of SQS, which counts what is delayed and leased as well.

Comes from:  people and tools, by ``Broker.admin``.
Goes to:     SQS, on a connection for each question.
Thread:      any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qworker.interrupts import undisturbed
from qworker.transports.kombu.admin import KombuAdmin
from qworker.transports.lease import QueueInfo


class SqsAdmin(KombuAdmin):
    """See KombuAdmin."""

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        names = sorted(self._names())
        standing = {info.queue: info for info in self.depths(names)}
        dead = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = []
        for name in sorted({*names, *dead}):
            _, ready, delayed, leased, _, _ = standing.get(name) or QueueInfo(name, 0, 0, 0, 0, None)
            found.append(QueueInfo(name, ready, delayed, leased, dead[name], None))
        return [info for info in found if info.ready or info.delayed or info.leased or info.dead]

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._administrating() as find:
            counts = [(name, find(name).queue_declare(passive=True)) for name in queues]
        return [
            QueueInfo(name, count.message_count, count.delayed, count.leased, 0, None)
            for name, count in counts
        ]
