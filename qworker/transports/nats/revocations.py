"""Revocations in JetStream: a stream that every worker reads from its beginning.

Comes from:  ``broker.py`` (encoded), the server.
Goes to:     the listener, by ``revoked_since``.
Thread:      the listener's; but _hear(), which the connection's thread calls.

The server drops what is older than revoke_expires. Who is told by a plain subscription that there is
something new reads the stream from there on, and reads it again after the connection was away. Numbers are
the microseconds at which the server stored them: those of a server that has lost its data do not begin anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from qworker.transports.held.port import Heard
from qworker.transports.lease import Revocation
from qworker.transports.nats.client import Client
from qworker.transports.nats.inbox import Entry, Reading
from qworker.transports.nats.url import Layout
from qworker.transports.nats.wire import Told


def encoded(id: str, terminate: bool, signal: str) -> bytes:
    """A revocation as it is sent."""
    return json.dumps({"id": id, "terminate": terminate, "signal": signal}).encode()


class Revocations(Heard):
    """What is heard over *connection*, the stream being there. ring: called in the thread of that."""

    def __init__(self, layout: Layout, connection: Client, ring: Callable[[], None]) -> None:
        self._stream = layout.revoked_stream
        self._connection = connection
        self._ring = ring
        self._news = True
        self._reconnects = connection.reconnects
        connection.subscribe(layout.revoked_subject, self._hear)

    def _hear(self, message: Told) -> None:
        self._news = True
        self._ring()

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
            # Two that were stored in one microsecond may be heard twice, which does no harm.
            if entry.stored > cursor * 1000:
                last = max(last, -(-entry.stored // 1000))
                revocation = _read(entry)
                if revocation is not None:
                    found.append(revocation)
        return last, found


def _read(entry: Entry) -> Revocation | None:
    """What a message says; None for a stranger's."""
    try:
        value = json.loads(entry.data)
        return Revocation(str(value["id"]), bool(value["terminate"]), str(value["signal"]))
    except (ValueError, KeyError, TypeError):
        return None
