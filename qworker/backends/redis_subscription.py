"""RedisBell: a subscription to the channels on which results are told.

Comes from:  ``redis.py``: one for each thread that waits, one for each event loop.
Goes to:     SUBSCRIBE, on a connection of its own.
Thread:      one at a time.
"""

from __future__ import annotations

import select
from collections.abc import Collection
from typing import Any

from qworker.errors import BackendError, BrokerUnavailable
from qworker.transports.redis.connection import Link, checked, pack
from qworker.transports.redis.url import Endpoint


class RedisBell:
    """prefix: of the channels; the id of a task follows."""

    def __init__(self, where: Endpoint, prefix: str) -> None:
        self._link = Link(where)
        self._prefix = prefix
        self._followed: set[str] = set()
        self._rung: list[str] = []

    def fileno(self) -> int:
        """What becomes readable when it rings; -1 while it is not connected."""
        return self._link.fileno()

    def follow(self, ids: Collection[str]) -> list[str]:
        """Ring from now on for *ids* and no others; return those of them that are new.

        Raises BackendError when the server does not answer; called again, it subscribes to all of them.
        """
        try:
            return self._follow(set(ids))
        except BrokerUnavailable:
            self._followed.clear()
        except BaseException:  # an interrupt: what was confirmed is not known
            self._link.close()
            raise
        try:  # the server may have closed a connection that was at rest
            return self._follow(set(ids))
        except BrokerUnavailable as error:
            self._followed.clear()
            raise BackendError(str(error)) from error
        except BaseException:  # an interrupt: what was confirmed is not known
            self._link.close()
            raise

    def _follow(self, wanted: set[str]) -> list[str]:
        if self._link.fileno() < 0:
            self._followed.clear()
        old, new = self._followed - wanted, wanted - self._followed
        if old:
            self._followed -= old
            self._link.send(pack(("UNSUBSCRIBE", *map(self._channel, old))))
        if new:
            self._subscribe(new)
            self._followed |= new
        return list(new)

    def _channel(self, task_id: str) -> str:
        return self._prefix + task_id

    def _subscribe(self, ids: set[str]) -> None:
        """Return when the server has confirmed: a look that follows sees what was stored before."""
        pending = len(ids)
        data = pack(("SUBSCRIBE", *map(self._channel, ids)))
        while pending:
            (reply,) = self._link.ask(data)
            pending -= checked(self._link, reply)[0] == b"subscribe"
            self._take(reply)
            data = b""

    def _take(self, reply: Any) -> None:
        if reply[0] == b"message":
            self._rung.append(reply[1].decode()[len(self._prefix) :])

    def rung(self) -> list[str]:
        """The ids that were told of since the last call, without waiting. Raises BackendError as follow()
        does."""
        try:
            for reply in self._link.received():
                self._take(checked(self._link, reply))
        except BrokerUnavailable as error:
            raise BackendError(str(error)) from error
        rung, self._rung = self._rung, []
        return rung

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds for a ring; True if it rang."""
        if self.rung():
            return True
        ready = select.poll()
        ready.register(self._link.fileno(), select.POLLIN)
        return bool(ready.poll(max(0.0, seconds * 1000))) and bool(self.rung())

    def close(self) -> None:
        self._followed.clear()
        self._link.close()
