"""Broker: Django-Q's broker interface. Subclass it for a custom broker.

Comes from:  ``choice.py``, which makes the project's broker.
Goes to:     a server, through the subclass.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheBackendError

from qworker.django.conf import conf


class Broker:
    """A queue of packages.

    list_key (text): the queue's name; None for this cluster's.
    """

    kind = "custom"
    """A cluster takes packages from a custom broker by these methods, from other kinds by their transport."""

    def __init__(self, list_key: str | None = None) -> None:
        self.list_key = list_key or conf.cluster_name
        self.cache = self.get_cache()
        self._info: str | None = None
        self.connection = self.get_connection(self.list_key)

    def __getstate__(self) -> tuple[str, str | None]:
        return self.list_key, self._info

    def __setstate__(self, state: tuple[str, str | None]) -> None:
        self.list_key, self._info = state
        self.connection = self.get_connection(self.list_key)
        self.cache = self.get_cache()

    def send(self, text: str, package: Mapping[str, Any]) -> Any:
        """Enqueue *text*, the signed *package*; return as enqueue()."""
        return self.enqueue(text)

    def enqueue(self, task: str) -> Any:
        """Put the signed package *task* into the queue; return its tracking id, or None."""
        raise NotImplementedError(f"{type(self).__qualname__} must define enqueue()")

    def dequeue(self) -> list[tuple[Any, str]] | None:
        """Take packages; return each with its tracking id. None or [] if there are none."""
        raise NotImplementedError(f"{type(self).__qualname__} must define dequeue()")

    def queue_size(self) -> int:
        """Return how many packages wait; 0 if unknown."""
        return 0

    def lock_size(self) -> int | None:
        """Return how many packages are taken and not acknowledged; None if unknown."""
        return None

    def delete_queue(self) -> Any:
        """Delete the queue and its content."""

    def purge_queue(self) -> Any:
        """Delete the content of the queue."""

    def delete(self, task_id: Any) -> None:
        """Delete the package with the tracking id *task_id*."""

    def acknowledge(self, task_id: Any) -> None:
        """Acknowledge the package with the tracking id *task_id*, which was run."""

    def fail(self, task_id: Any) -> None:
        """Reject the package with the tracking id *task_id*, which cannot be unpacked."""

    def ping(self) -> bool:
        """Return whether the server answers; False if that is not checked."""
        return False

    def info(self) -> str:
        """Return the kind of broker and its version."""
        return type(self).__name__

    # -- statistics, in the cache --

    def set_stat(self, key: str, value: str, timeout: float) -> None:
        """Store the text *value* of a cluster under *key* for *timeout* seconds."""
        if self.cache is not None:
            keys = self.cache.get(self._stats) or []
            if key not in keys:
                self.cache.set(self._stats, [*keys, key])
            self.cache.set(key, value, timeout)

    def get_stat(self, key: str) -> str | None:
        """Return the value of *key*; None if there is none."""
        return None if self.cache is None else self.cache.get(key)

    def get_stats(self, pattern: str) -> list[str]:
        """Return the values of all keys that match *pattern*, text that ends with ``*``."""
        if self.cache is None:
            return []
        start, known = pattern.rstrip("*"), self.cache.get(self._stats) or []
        found = self.cache.get_many(known)
        if len(found) < len(known):
            self.cache.set(self._stats, [key for key in known if key in found])
        return [found[key] for key in known if key in found and key.startswith(start)]

    @property
    def _stats(self) -> str:
        return f"{conf.prefix}:stats"

    @staticmethod
    def get_cache() -> Any:
        """Return the cache of ``Q_CLUSTER['cache']``; None if it does not exist."""
        try:
            return caches[conf.cache]
        except InvalidCacheBackendError:
            return None

    @staticmethod
    def get_connection(list_key: str | None = None) -> Any:
        """Return the broker's connection; None if it has none of its own."""
        return None
