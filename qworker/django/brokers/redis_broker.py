"""The broker in Redis.

Comes from:  ``Q_CLUSTER['redis']`` or ``Q_CLUSTER['django_redis']``.
Goes to:     the lists of qworker's transport there, which keep the packages of a lost cluster.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker
from qworker.naming import import_object

PING_SECONDS = 1.0
"""For each step of a ping, a health check that must not wait for the longer timeouts."""


class Redis(TransportBroker):
    """A queue in Redis."""

    kind = "redis"
    name = "Redis"

    def ping(self) -> bool:
        return bool(import_object("qworker.django.transports.redis_channel:answers")(PING_SECONDS))
