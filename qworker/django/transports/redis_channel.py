"""redis_channel: notifications of ended tasks on a channel of Redis, if that is the broker.

Comes from:  ``notifications.py``, if the database of results cannot notify.
Goes to:     PUBLISH, SUBSCRIBE and PING, each on its own connection.
Thread:      any for publish(); a Subscription belongs to the thread that leads the watcher.

Notifications may be lost: waiting callers also poll twice a second.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from qworker.django.conf import conf
from qworker.django.transports.urls import url_and_options
from qworker.errors import BrokerUnavailable
from qworker.transports.redis.connection import Link, Links, checked, pack
from qworker.transports.redis.url import Endpoint, endpoint

logger = logging.getLogger(__name__)

_links: dict[Endpoint, Links] = {}
"""By server. Any thread."""


def _place() -> Endpoint:
    url, more = url_and_options("redis")
    return endpoint(url, more.get("broker_transport_options"))


def _channel() -> str:
    return f"qworker.django.{conf.prefix}.ended"


def publish(texts: Collection[str]) -> None:
    """Publish the ids, names and groups of ended tasks. Does nothing if the server is not available."""
    where = _place()
    links = _links.get(where) or _links.setdefault(where, Links(where))
    try:
        with links.lent() as link:
            checked(link, link.ask(pack(("PUBLISH", _channel(), "\n".join(texts))))[0])
    except BrokerUnavailable as error:
        logger.debug("%d ended tasks are not notified: %s", len(texts), error)


def answers(seconds: float) -> bool:
    """Return whether the server answers. Each of a few steps may take up to *seconds*."""
    link = Link(_place())
    try:
        checked(link, link.ask(pack(("PING",)), timeout=seconds)[0])
    except BrokerUnavailable:
        return False
    finally:
        link.close()
    return True


class Subscription:
    """The Notifications of the channel. Its methods raise BrokerUnavailable."""

    def __init__(self) -> None:
        self._link = Link(_place())
        checked(self._link, self._link.ask(pack(("SUBSCRIBE", _channel())))[0])

    def fileno(self) -> int:
        return self._link.fileno()

    def announced(self) -> Collection[str]:
        replies = [checked(self._link, reply) for reply in self._link.received()]
        texts = [reply[2].decode("utf-8", "replace") for reply in replies if reply[0] == b"message"]
        return [text for some in texts for text in some.split("\n")]

    def close(self) -> None:
        self._link.close()

    def abandon(self) -> None:
        self._link.abandon()
