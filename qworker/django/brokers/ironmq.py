"""The broker in IronMQ.

Comes from:  ``Q_CLUSTER['iron_mq']``.
Goes to:     the queues of qworker's transport there.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker


class IronMQBroker(TransportBroker):
    """A queue in IronMQ."""

    kind = "ironmq"
    name = "IronMQ"

    def lock_size(self) -> int | None:
        """Return None: IronMQ does not report it, and counts taken messages in queue_size()."""
        return None
