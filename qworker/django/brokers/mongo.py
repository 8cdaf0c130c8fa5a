"""The broker in MongoDB.

Comes from:  ``Q_CLUSTER['mongo']``.
Goes to:     the collections of qworker's transport there.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker


class Mongo(TransportBroker):
    """A queue in MongoDB."""

    kind = "mongo"
    name = "MongoDB"
