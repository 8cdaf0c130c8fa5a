"""Server: connecting to IronMQ, and its errors.

Comes from:  ``broker_url`` and ``broker_transport_options``.
Goes to:     ``client.py``.
Thread:      any.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.connect_errors import IRONMQ as SPELLING
from qworker.transports.connect_errors import explained
from qworker.transports.held.port import DEAD, QueueGone, Server
from qworker.transports.ironmq.address import address_of, tls_to
from qworker.transports.ironmq.client import Client, HTTPError, IronError
from qworker.transports.ironmq.queue import IronQueue

LEASE_SECONDS = 30
"""How long messages are hidden by default; IronMQ's minimum."""
LONGEST_LEASE = 86_400
SHELF_SECONDS = 120
"""How long a dead letter is hidden while it is being read."""
WAIT_SECONDS = 20
LONGEST_WAIT = 30


class IronServer(Server):
    """visibility: seconds after which a dead worker's messages come back. options: ``wait_time_seconds``, of
    one long poll. use_ssl: as the setting broker_use_ssl."""

    def __init__(
        self, url: str, options: dict[str, Any], visibility: int, timeout: float, use_ssl: Any = None
    ) -> None:
        super().__init__(url, timeout)
        self._address = address_of(url, os.environ)
        self._tls = tls_to(url, use_ssl)
        self._hidden = min(LONGEST_LEASE, max(LEASE_SECONDS, visibility))
        self.wait_seconds = min(LONGEST_WAIT, max(0, int(options.get("wait_time_seconds", WAIT_SECONDS))))
        self._answered = False

    def connect(self) -> Client:
        with self.errors(None):
            client = Client(self._address, self.timeout, self._tls and self._tls.context())
            client.call("GET", "?per_page=1")
        self._answered = True
        return client

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            yield
        except IronError as error:
            if error.status in (401, 403) and not self._answered:
                raise ConfigurationError(
                    f"{self.shown} refuses the login: {error}; check the project and the token",
                    setting="broker_url",
                ) from error
            if error.status == 404 and not self._answered:
                raise ConfigurationError(
                    f"{self.shown} has no such project: {error}; check the project, the host and the path",
                    setting="broker_url",
                ) from error
            kind = QueueGone if error.status == 404 else BrokerUnavailable
            raise kind(f"{self.shown}: {error}") from error
        except (HTTPError, OSError) as error:
            why = explained(f"{type(error).__name__}: {error}", SPELLING)
            raise BrokerUnavailable(f"{self.shown}: {why}") from error

    def declare(self, connection: Any, queue: str) -> IronQueue:
        shelf = SHELF_SECONDS if queue == DEAD else 0
        return IronQueue(connection, queue, max(self._hidden, shelf))
