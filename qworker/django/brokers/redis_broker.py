"""The broker in Redis.

Comes from:  ``Q_CLUSTER['redis']`` or ``Q_CLUSTER['django_redis']``.
Goes to:     the lists of qworker's transport there, which keep what a lost cluster had taken.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker
from qworker.naming import import_object

PING_SECONDS = 1.0
"""For each step of a ping: who asks is a health check, and waits for no timeout of ours."""


class Redis(TransportBroker):
    """A queue in Redis."""

    kind = "redis"
    name = "Redis"

    def ping(self) -> bool:
        return bool(import_object("qworker.django.transports.redis_channel:answers")(PING_SECONDS))
