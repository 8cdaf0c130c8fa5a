"""Failed tasks in RabbitMQ: the queue ``qworker.failed``.

Comes from:  people and tools, by ``AMQPBroker.failed``; the consumer puts them there.
Goes to:     ``letters.py``; the publisher, for what runs again.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Sequence

from qworker.naming import task_id
from qworker.transports.amqp.letters import all_letters, newest
from qworker.transports.amqp.outgoing import outgoing
from qworker.transports.amqp.publisher import Publisher
from qworker.transports.amqp.queues import FAILED
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Again, Dead, Envelope, FailedTasks


class AMQPFailed(FailedTasks):
    """publisher: of this process."""

    def __init__(self, server: Server, publisher: Publisher) -> None:
        self._server = server
        self._publisher = publisher

    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return newest(self._server, FAILED, queue, limit)

    def send_again(self, calls: Sequence[Again]) -> int:
        """As FailedTasks has it, but in two steps: a crash between them leaves a task sent and kept."""
        prefix, now = self._server.queues.prefix, self._server.clock.now()
        with all_letters(self._server, FAILED) as found:
            letters = {letter.dead.tag: letter for letter in found.letters}
            sent, messages = [], []
            for call in calls:
                letter = letters.pop(call.tag, None)
                if letter is None:
                    continue
                sent.append(letter)
                again = Envelope(letter.dead.queue, call.headers, call.properties, call.body, letter.priority)
                messages.append(outgoing(again, task_id(), prefix, now))
            self._publisher.send(messages, self._server.timeout)
            return found.remove(sent)

    def discard(self, tags: Sequence[int] | None = None) -> int:
        with all_letters(self._server, FAILED) as found:
            return found.remove(found.chosen(tags))
