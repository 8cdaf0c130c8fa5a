"""Brokers over a transport of qworker: the same messages that its workers take.

Comes from:  ``orm.py``, ``redis_broker.py``, ``aws_sqs.py``.
Goes to:     the three sides of a transport: sender, consumer, administration.
Thread:      any, but for dequeue() and what follows it, which belong to one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qworker import __version__
from qworker.django.brokers.base import Broker
from qworker.django.conf import conf
from qworker.django.packages import envelope_of, text_of
from qworker.django.signing import SignedPackage
from qworker.django.transport import open_transport
from qworker.errors import InvalidTaskMessage, QWorkerError
from qworker.naming import node_name
from qworker.transports.lease import Ack, DeadLetter, Envelope
from qworker.transports.lease import Broker as Transport

_transports: dict[str, Transport] = {}
"""Opened already, by kind. One for a process: it has the connections."""


def transport(kind: str) -> Transport:
    """Return the transport of this *kind*, the same for all of this process."""
    return _transports.get(kind) or _transports.setdefault(kind, open_transport(kind))


def close_transports() -> None:
    """Let go of all; the next use opens them again."""
    while _transports:
        _transports.popitem()[1].close()


class TransportBroker(Broker):
    """A queue of a transport of qworker's."""

    name = "qworker"

    def __init__(self, list_key: str | None = None) -> None:
        super().__init__(list_key)
        self._generation = 0

    def __setstate__(self, state: tuple[str, str | None]) -> None:
        super().__setstate__(state)
        self._generation = 0

    def send(self, text: str, package: Mapping[str, Any]) -> Any:
        self._push(envelope_of(text, package, self.list_key))
        return package["id"]

    @property
    def _transport(self) -> Transport:
        return transport(self.kind)

    def _push(self, envelope: Envelope) -> None:
        self._transport.sender.push([envelope])

    def enqueue(self, task: str) -> Any:
        return self.send(task, SignedPackage.loads(task))

    def dequeue(self) -> list[tuple[Any, str]] | None:
        consumer = self._transport.consumer
        if not self._generation:
            self._generation = consumer.register(node_name("broker@%h"), (self.list_key,), 1)
        found = consumer.lease((self.list_key,), max(1, conf.bulk)).messages
        if not found:
            consumer.wait(conf.poll)
            found = consumer.lease((self.list_key,), max(1, conf.bulk)).messages
        packages = []
        for each in found:
            try:
                packages.append((each.tag, text_of(each.body)))
            except InvalidTaskMessage as error:
                consumer.settle(self._generation, [DeadLetter(each.tag, str(error))])
        return packages

    def acknowledge(self, task_id: Any) -> None:
        self._transport.consumer.settle(self._generation, [Ack(task_id)])

    def delete(self, task_id: Any) -> None:
        self.acknowledge(task_id)

    def fail(self, task_id: Any) -> None:
        self._transport.consumer.settle(
            self._generation, [DeadLetter(task_id, "the package could not be unpacked")]
        )

    def queue_size(self) -> int:
        (found,) = self._transport.admin.depths([self.list_key])
        return found.ready + found.delayed

    def lock_size(self) -> int | None:
        (found,) = self._transport.admin.depths([self.list_key])
        return found.leased

    def purge_queue(self) -> Any:
        return self._transport.admin.purge(self.list_key)

    def delete_queue(self) -> Any:
        return self.purge_queue()

    def ping(self) -> bool:
        try:
            self._transport.admin.depths([self.list_key])
        except QWorkerError:
            return False
        return True

    def info(self) -> str:
        return f"{self.name}, by qworker {__version__}"
