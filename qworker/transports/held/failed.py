"""Failed tasks on a server that has a place for them: looked at, sent again, discarded.

Comes from:  people and tools, by ``Broker.failed``; the consumer puts them there.
Goes to:     the administration, for the letters; the sender, for what runs again.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.interrupts import undisturbed
from qworker.transports.kombu.admin import KombuAdmin
from qworker.transports.kombu.messages import outgoing, read
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.kombu.server import FAILED
from qworker.transports.lease import Again, Dead, FailedTasks


class RemoteFailed(FailedTasks):
    """admin, sender: of this process."""

    def __init__(self, admin: KombuAdmin, sender: KombuSender) -> None:
        self._admin = admin
        self._sender = sender

    @undisturbed
    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return self._admin.newest(FAILED, queue, limit)

    @undisturbed
    def send_again(self, calls: Sequence[Again]) -> int:
        """As FailedTasks has it, but each in two steps: a crash between them leaves a task sent and kept."""
        count = 0
        with self._admin.letters(FAILED) as taken:
            kept = {letter.tag: (message, letter) for message, letter in taken}
            for call in calls:
                if call.tag not in kept:
                    continue
                message, letter = kept.pop(call.tag)
                priority = read(message).priority
                again = outgoing(letter.queue, call.headers, call.properties, call.body, priority, {})
                self._sender.send([again])
                message.ack()
                count += 1
        return count

    @undisturbed
    def discard(self, tags: Sequence[int] | None = None) -> int:
        return self._admin.discard(FAILED, tags)
