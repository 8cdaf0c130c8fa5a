"""Revocations in JetStream: a stream that every worker reads from its beginning.

Comes from:  ``broker.py`` (encoded), the server.
Goes to:     the listener, by ``revoked_since``.
Thread:      the listener's, except _receive(), which the connection's thread calls.

The server drops messages older than revoke_expires. A plain subscription announces new ones; the stream is
then read from there on, and again after a lost connection. Numbers are the microseconds at which the server
stored them: they do not restart after a loss of data.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from qworker.transports.held.port import ReceivedRevocations
from qworker.transports.lease import Revocation
from qworker.transports.nats.client import Client
from qworker.transports.nats.inbox import Entry, Reading
from qworker.transports.nats.url import Layout
from qworker.transports.nats.wire import WireMessage


def encoded(id: str, terminate: bool, signal: str) -> bytes:
    """Return the data of a revocation."""
    return json.dumps({"id": id, "terminate": terminate, "signal": signal}).encode()


class Revocations(ReceivedRevocations):
    """The revocations received over *connection*; the stream exists. notify: called in its thread."""

    def __init__(self, layout: Layout, connection: Client, notify: Callable[[], None]) -> None:
        self._stream = layout.revoked_stream
        self._connection = connection
        self._notify = notify
        self._news = True
        self._reconnects = connection.reconnects
        connection.subscribe(layout.revoked_subject, self._receive)

    def _receive(self, message: WireMessage) -> None:
        self._news = True
        self._notify()

    @property
    def has_news(self) -> bool:  # type: ignore[override]
        return self._news or self._reconnects != self._connection.reconnects

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._news, self._reconnects = False, self._connection.reconnects
        try:
            entries = Reading(self._connection, self._stream, cursor * 1000 if cursor else None).rest()
        except BaseException:
            self._news = True
            raise
        found: list[Revocation] = []
        last = cursor
        for entry in entries:
            # Two stored in one microsecond may be returned twice, which does no harm.
            if entry.stored > cursor * 1000:
                last = max(last, -(-entry.stored // 1000))
                revocation = _read(entry)
                if revocation is not None:
                    found.append(revocation)
        return last, found


def _read(entry: Entry) -> Revocation | None:
    """Return the contents of a message; None for a foreign one."""
    try:
        value = json.loads(entry.data)
        return Revocation(str(value["id"]), bool(value["terminate"]), str(value["signal"]))
    except (ValueError, KeyError, TypeError):
        return None
