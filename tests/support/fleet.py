"""Idle workers of one broker: threads that take each message as soon as they are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qworker.transports.lease import Ack, Broker
from tests.support.waiting import until

Open = Callable[[], Broker]
"""Opens another broker at the same place."""
LIMIT = 4
"""Maximum messages of one claim of a worker."""


class Idle(threading.Thread):
    """A worker that takes a message when it is woken, and acks it at once. taken: the number of messages;
    claims: of calls of lease() after it had begun to wait."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(daemon=True, name=name)
        self.consumer, self.taken, self.claims = broker.consumer, 0, 0
        self.waits = self.ending = False

    def run(self) -> None:
        consumer = self.consumer
        generation = consumer.register(self.name, ["q"], 1)
        consumer.lease(["q"], LIMIT)
        while not self.ending:
            self.waits = True
            if not consumer.wait(0.5, LIMIT) and not consumer.prefetched:
                continue
            full = True
            while full:
                messages = consumer.lease(["q"], LIMIT).messages
                self.claims += 1
                self.taken += len(messages)
                consumer.settle(generation, [Ack(each.tag) for each in messages])
                full = len(messages) == LIMIT
        consumer.deregister()


@contextmanager
def fleet(open_: Open, size: int) -> Iterator[list[Idle]]:
    """Run *size* idle workers."""
    workers = [Idle(open_(), f"w{number}") for number in range(size)]
    for worker in workers:
        worker.start()
    until(lambda: all(worker.waits for worker in workers))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.ending = True
            worker.consumer.wake()
        for worker in workers:
            worker.join(30)


def taken(workers: list[Idle]) -> int:
    """Return the number of messages that *workers* have taken."""
    return sum(worker.taken for worker in workers)
