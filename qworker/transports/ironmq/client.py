"""Calls of IronMQ's HTTP interface, with JSON objects in both directions.

Comes from:  ``broker.py``.
Goes to:     urllib3, which keeps connections and makes new ones.
Thread:      any, at the same time.

A server that is too busy (429, 503) has done nothing: the request is repeated after a moment, a few times.
Any other error is raised at once, because it is unknown what the server did.
"""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlsplit

from qworker.errors import ConfigurationError
from qworker.naming import install_command
from qworker.process.randomness import RANDOM
from qworker.transports.ironmq.address import Address

try:
    import urllib3
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise ConfigurationError(
        f"urllib3 is not installed, which ironmq:// needs: {install_command('ironmq')}",
        setting="broker_url",
    ) from error

__all__ = ["Client", "HTTPError", "IronError"]

BUSY = frozenset({429, 503})
TRIES = 4
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0
MOST_ANSWER = 64 * 1024**2
"""Bytes; a hundred messages, the maximum per request, take half of that."""
CHUNK = 65536
CONNECTIONS = 64
"""Idle connections that stay open; more may be open meanwhile."""


class IronError(OSError):
    """status: of HTTP; 0 if there was no valid answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})" if status else message)
        self.status = status


class _AtOnce:
    """A connection that writes a request once, and so sends one packet where http.client makes two."""

    _parts: list[bytes] | None = None

    def request(self, *given: Any, **more: Any) -> None:
        connection: Any = super()
        parts = self._parts = []
        try:
            connection.request(*given, **more)
        finally:
            self._parts = None
        connection.send(b"".join(parts))

    def send(self, data: bytes) -> None:
        connection: Any = super()
        if self._parts is None:
            connection.send(data)
        else:
            self._parts.append(data)


class Client:
    """timeout: seconds for connecting and, in addition to a call's own wait, for an answer. ssl_context: None
    for the system's trusted authorities."""

    def __init__(self, address: Address, timeout: float, ssl_context: Any = None) -> None:
        self._timeout = timeout
        self._base = address.base
        self._path = urlsplit(address.base).path
        self._options: dict[str, Any] = {
            "maxsize": CONNECTIONS,
            "headers": {"Authorization": f"OAuth {address.token}", "Content-Type": "application/json"},
        }
        if ssl_context:
            self._options["ssl_context"] = ssl_context
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        pool: Any = urllib3.connection_from_url(self._base, **self._options)
        pool.ConnectionCls = type("AtOnce", (_AtOnce, pool.ConnectionCls), {})
        return pool

    def call(self, method: str, path: str, given: Any = None, wait: float = 0.0) -> dict[str, Any]:
        """Return the answer to *given* at *path*, below the queues of the project. wait: seconds that the
        server is asked to wait. Raises IronError, and errors of urllib3."""
        body = None if given is None else json.dumps(given).encode()
        timeout = urllib3.Timeout(connect=self._timeout, read=self._timeout + 5.0 + wait)
        for left in reversed(range(TRIES)):
            answer = self._pool.urlopen(
                method, self._path + path, body, retries=False, timeout=timeout, preload_content=False
            )
            data = _whole(answer)
            if answer.status not in BUSY or not left:
                break
            time.sleep(_pause(answer.headers.get("Retry-After"), TRIES - left - 1))
        return _read(answer.status, data)

    def release(self) -> None:
        """Close idle connections."""
        pool, self._pool = self._pool, self._new_pool()
        pool.close()


def _whole(answer: Any) -> bytes:
    """Return the content of *answer*, limited to IronMQ's maximum, whatever size is announced."""
    parts: list[bytes] = []
    size = 0
    try:
        if int(answer.headers.get("Content-Length") or 0) > MOST_ANSWER:
            raise IronError(0, "it announces an answer longer than the maximum")
        while part := answer.read(CHUNK):
            parts.append(part)
            size += len(part)
            if size > MOST_ANSWER:
                raise IronError(0, "its answer is longer than the maximum")
    except BaseException as error:
        answer.close()
        if isinstance(error, ValueError):
            raise IronError(0, "it announces an answer without a valid length") from None
        raise
    answer.release_conn()
    return b"".join(parts)


def _pause(retry_after: str | None, tries: int) -> float:
    """Return the seconds until the next attempt, randomised to spread clients."""
    try:
        least = float(retry_after or "")
    except ValueError:
        least = FIRST_PAUSE * 2**tries
    return min(least, LONGEST_PAUSE) * RANDOM.uniform(1.0, 1.5)


def _read(status: int, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not 200 <= status < 300:
        message = found.get("msg") if isinstance(found, dict) else None
        raise IronError(status, str(message or "it refuses"))
    if not isinstance(found, dict):
        raise IronError(status, "its answer is not a JSON object")
    return found
