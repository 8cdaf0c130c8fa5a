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
        """None: IronMQ does not tell, and counts what is taken in queue_size()."""
        return None
