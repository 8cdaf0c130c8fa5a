"""Registry: short texts with an expiry that a store keeps with its messages.

Comes from:  ``transports/as_kombu/exchanges.py``, which stores queues and bindings; qworker itself does not
             need it.
Goes to:     the stores that have one (``Broker.registry``): one module each in their packages.
Thread:      any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping


class Registry(ABC):
    """Always read as a whole, so it is meant for a few thousand entries."""

    @abstractmethod
    def entries(self) -> dict[str, float | None]:
        """Return all entries, each with the epoch second when it expires (None: never). An expired one is
        there until it is dropped. Raises BrokerUnavailable, like the other methods."""

    @abstractmethod
    def put(self, entries: Mapping[str, float | None]) -> None:
        """Store *entries*, replacing equal ones."""

    @abstractmethod
    def drop(self, entries: Iterable[str]) -> None:
        """Delete *entries*; missing ones are ignored."""


class LocalRegistry(Registry):
    """The registry of one connection, if the store has none. Owner: the thread that declares queues."""

    def __init__(self) -> None:
        self._entries: dict[str, float | None] = {}

    def entries(self) -> dict[str, float | None]:
        return dict(self._entries)

    def put(self, entries: Mapping[str, float | None]) -> None:
        self._entries.update(entries)

    def drop(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._entries.pop(entry, None)
