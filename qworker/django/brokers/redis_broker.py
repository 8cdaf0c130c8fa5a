"""The broker in Redis.

Comes from:  ``Q_CLUSTER['redis']`` or ``Q_CLUSTER['django_redis']``.
Goes to:     the lists of qworker's transport there, which keep what a lost cluster had taken.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker


class Redis(TransportBroker):
    """A queue in Redis."""

    kind = "redis"
    name = "Redis"
