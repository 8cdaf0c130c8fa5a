"""Connections by kombu to the broker that carries results as messages.

Comes from:  ``rpc_replies.py``, which reads and sends them.
Goes to:     kombu.
Thread:      any; a connection belongs to the thread that made it, and none crosses a fork.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from qworker.conf.secrets import mask_urls
from qworker.transports.connect_errors import RABBITMQ, explained, while_connecting
from qworker.transports.tls import for_kombu

logger = logging.getLogger(__name__)

kombu: Any = import_module("kombu")  # which has types for a part of itself only

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""After so long without a word a server that was asked something is given up."""


class Connector:
    """Makes connections to the broker that *conf* names."""

    def __init__(self, conf: Any) -> None:
        self.safe_url = mask_urls(conf.broker_url)
        hostname, ssl = for_kombu(conf.broker_url.split(";")[0], conf.broker_use_ssl)
        self._options = {
            "hostname": hostname,
            # For amqp:// kombu would look for librabbitmq at every connection. A child that was forked while
            # another thread is at it would wait for that import without end.
            "transport": "pyamqp" if hostname.startswith("amqp:") else None,
            "ssl": ssl,
            "transport_options": {**_patience(hostname), **conf.broker_transport_options},
            "connect_timeout": CONNECT_SECONDS,
        }

    def connect(self) -> Any:
        """Return a new connection; raises one of ``broken``."""
        connection = kombu.Connection(**self._options)
        connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
        return connection

    def why(self, error: BaseException) -> str:
        """What is said of one of ``broken`` while connecting, in words that say what to do."""
        words = while_connecting(str(error) or type(error).__name__, bool(self._options["ssl"]))
        return f"no reply queue at the broker ({self.safe_url}): {explained(words, RABBITMQ)}"

    @property
    def broken(self) -> tuple[type[BaseException], ...]:
        """What kombu raises when the broker does not answer, or refuses."""
        connection = kombu.Connection(**self._options)
        return (
            *connection.connection_errors,
            *connection.channel_errors,
            OSError,
            kombu.exceptions.KombuError,
        )


def let_go(connection: Any) -> None:
    """Close *connection*, which may be broken; None: there is none."""
    if connection is None:
        return
    try:
        # Not collect(): it sets a timeout for all new sockets of the process, for a while.
        connection.release()
    except Exception as error:  # noqa: BLE001
        # Whatever a broken connection raises when it is closed, it is closed.
        logger.debug("closing a connection: %s", error)


def _patience(hostname: str) -> dict[str, float]:
    """The options by which py-amqp gives up on a server that has accepted us and then says nothing."""
    amqp = hostname.partition("://")[0] in ("amqp", "amqps", "pyamqp")
    return {"read_timeout": ANSWER_SECONDS, "write_timeout": ANSWER_SECONDS} if amqp else {}
