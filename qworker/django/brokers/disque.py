"""The broker in Disque.

Comes from:  ``Q_CLUSTER['disque_nodes']``.
Goes to:     the queues of qworker's transport there.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker
from qworker.transports.lease import QueueInfo


class Disque(TransportBroker):
    """A queue in Disque."""

    kind = "disque"
    name = "Disque"

    def _queue_info(self) -> QueueInfo:
        # Disque counts only waiting jobs; queues() also counts delayed and locked ones.
        found = (each for each in self._transport.admin.queues() if each.queue == self.list_key)
        return next(found, QueueInfo(self.list_key))
