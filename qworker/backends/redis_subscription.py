"""RedisSubscription: the channels on which results are told, for those who wait for them.

Comes from:  ``redis.py``, for the ResultWatcher.
Goes to:     SUBSCRIBE, on a connection of its own.
Thread:      one at a time: the one that leads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from qworker.transports.redis.connection import Link, checked, pack
from qworker.transports.redis.url import Endpoint


class RedisSubscription:
    """A Source. prefix: of the channels; the id of a task follows. Raises BrokerUnavailable."""

    def __init__(self, where: Endpoint, prefix: str) -> None:
        self._link = Link(where)
        self._prefix = prefix
        self._subscribed: set[str] = set()
        self._told: list[str] = []

    def fileno(self) -> int:
        return self._link.fileno()

    def subscribe(self, ids: Collection[str]) -> None:
        """Returns when the server has confirmed: a look that follows sees what was stored before."""
        wanted = set(ids)
        old, new = self._subscribed - wanted, wanted - self._subscribed
        data = pack(("UNSUBSCRIBE", *map(self._channel, old))) if old else b""
        if new:
            data += pack(("SUBSCRIBE", *map(self._channel, new)))
            pending = len(new)
            while pending:
                (reply,) = self._link.ask(data)
                pending -= checked(self._link, reply)[0] == b"subscribe"
                self._take(reply)
                data = b""
        elif old:
            self._link.send(data)
        self._subscribed = wanted

    def _channel(self, task_id: str) -> str:
        return self._prefix + task_id

    def _take(self, reply: Any) -> None:
        if reply[0] == b"message":
            self._told.append(reply[1].decode()[len(self._prefix) :])

    def told(self) -> Collection[str]:
        for reply in self._link.received():
            self._take(checked(self._link, reply))
        told, self._told = self._told, []
        return told

    def close(self) -> None:
        self._link.close()

    def abandon(self) -> None:
        self._link.abandon()
