"""Registry: a few texts that a store keeps beside its messages, each until it lapses.

Comes from:  ``transports/as_kombu/exchanges.py``, which keeps queues and bindings so; qworker itself names
             its queues and needs none of this.
Goes to:     the stores that keep one (``Broker.registry``): a module each in their packages.
Thread:      any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping


class Registry(ABC):
    """All of it is read at once, so it is for some thousand entries."""

    @abstractmethod
    def entries(self) -> dict[str, float | None]:
        """All entries, each with the epoch second at which it lapses (None: never). One that has lapsed is
        still there until somebody drops it. Raises BrokerUnavailable, as the others do."""

    @abstractmethod
    def put(self, entries: Mapping[str, float | None]) -> None:
        """Keep *entries*, in the place of their like."""

    @abstractmethod
    def drop(self, entries: Iterable[str]) -> None:
        """Forget *entries*; those that are not there do not matter."""


class LocalRegistry(Registry):
    """That of one connection, where the store keeps none. Owner: the thread that declares queues."""

    def __init__(self) -> None:
        self._entries: dict[str, float | None] = {}

    def entries(self) -> dict[str, float | None]:
        return dict(self._entries)

    def put(self, entries: Mapping[str, float | None]) -> None:
        self._entries.update(entries)

    def drop(self, entries: Iterable[str]) -> None:
        for entry in entries:
            self._entries.pop(entry, None)
