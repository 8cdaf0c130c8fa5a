"""transported: brokers over qworker's transports, with the messages that its workers take.

Comes from:  the module of each kind: ``orm.py``, ``redis_broker.py`` and so on.
Goes to:     a transport's sender and administration; ``taking.py`` for its consumer.
Thread:      any; dequeue() and the methods that acknowledge or reject: one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qworker import __version__
from qworker.django.brokers.base import Broker
from qworker.django.brokers.taking import Taking
from qworker.django.signing import SignedPackage
from qworker.django.transports.opening import open_transport
from qworker.django.transports.packages import envelope_of, text_of
from qworker.errors import InvalidTaskMessage, QWorkerError
from qworker.transports.lease import Ack, DeadLetter, Envelope, QueueInfo
from qworker.transports.lease import Broker as Transport

_transports: dict[str, Transport] = {}
"""Open transports with their connections, by kind."""
_takings: dict[tuple[str, str], Taking] = {}
"""By kind and queue; each has its own transport."""


def transport(kind: str) -> Transport:
    """Return this process's transport of this *kind*."""
    return _transports.get(kind) or _transports.setdefault(kind, open_transport(kind))


def close_transports() -> None:
    """Close all transports; the next use opens them again."""
    while _takings:
        _takings.popitem()[1].close()
    while _transports:
        _transports.popitem()[1].close()


class TransportBroker(Broker):
    """A queue of a qworker transport."""

    name = "qworker"

    def send(self, text: str, package: Mapping[str, Any]) -> Any:
        self._push(envelope_of(text, package, self.list_key))
        return package["id"]

    @property
    def _transport(self) -> Transport:
        return transport(self.kind)

    @property
    def _taking(self) -> Taking:
        key = (self.kind, self.list_key)
        return _takings.get(key) or _takings.setdefault(key, Taking(open_transport(self.kind), self.list_key))

    def _push(self, envelope: Envelope) -> None:
        self._transport.sender.push([envelope])

    def enqueue(self, task: str) -> Any:
        return self.send(task, SignedPackage.loads(task))

    def dequeue(self) -> list[tuple[Any, str]] | None:
        packages = []
        for each in self._taking.take():
            try:
                packages.append((each.tag, text_of(each.body)))
            except InvalidTaskMessage as error:
                self._taking.settle(DeadLetter(each.tag, str(error)))
        return packages

    def acknowledge(self, task_id: Any) -> None:
        self._taking.settle(Ack(task_id))

    def delete(self, task_id: Any) -> None:
        self.acknowledge(task_id)

    def fail(self, task_id: Any) -> None:
        self._taking.settle(DeadLetter(task_id, "the package could not be unpacked"))

    def queue_size(self) -> int:
        found = self._queue_info()
        return found.ready + found.delayed

    def lock_size(self) -> int | None:
        return self._queue_info().leased

    def _queue_info(self) -> QueueInfo:
        (found,) = self._transport.admin.depths([self.list_key])
        return found

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
