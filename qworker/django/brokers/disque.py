"""The broker in Disque.

Comes from:  ``Q_CLUSTER['disque_nodes']``.
Goes to:     the queues of qworker's transport there.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker


class Disque(TransportBroker):
    """A queue in Disque."""

    kind = "disque"
    name = "Disque"
