"""Result stores, found by the scheme of their URL; each module is imported on first use.

Modules, in reading order: ``base`` (the interface of a store), ``codec`` (values as bytes), ``joins``
(waiting for the members of a group), ``result_watcher`` and ``waiters`` (waiting for results), ``place`` (the
default place of results), ``stores`` (the stores of an app), ``mongodb``, ``disabled``. Packages: ``sql``
(SQLite as well), ``redis``, ``keyvalue`` (files, memcached, memory), ``rpc``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qworker.backends.base import Backend
from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.naming import close_matches

SCHEMES: dict[str, tuple[str, str]] = {
    "sqlite": ("qworker.backends.sql.sqlite", "SQLiteBackend"),
    "redis": ("qworker.backends.redis.backend", "RedisBackend"),
    "rediss": ("qworker.backends.redis.backend", "RedisBackend"),
    "valkey": ("qworker.backends.redis.backend", "RedisBackend"),
    "valkeys": ("qworker.backends.redis.backend", "RedisBackend"),
    "unix": ("qworker.backends.redis.backend", "RedisBackend"),
    "sentinel": ("qworker.backends.redis.backend", "RedisBackend"),
    "db": ("qworker.backends.sql.backend", "SQLBackend"),
    "mongodb": ("qworker.backends.mongodb", "MongoBackend"),
    "file": ("qworker.backends.keyvalue.filesystem", "FilesystemBackend"),
    "cache+memory": ("qworker.backends.keyvalue.memory", "MemoryBackend"),
    "cache+memcached": ("qworker.backends.keyvalue.memcached", "MemcachedBackend"),
    "cache+pylibmc": ("qworker.backends.keyvalue.memcached", "MemcachedBackend"),
    "rpc": ("qworker.backends.rpc.backend", "RpcBackend"),
    "disabled": ("qworker.backends.disabled", "DisabledBackend"),
}
"""The module and class for each scheme. For ``db+postgresql`` the part before the plus is looked up."""

_EXAMPLES = (
    "sqlite:///results.db, redis://host:6379/0, db+postgresql://user@host/name, file:///directory, "
    "cache+memory:// or disabled://"
)


def open_backend(url: str, conf: Any, clock: Clock) -> Backend:
    """Return the result store at *url*; it connects on first use.

    Raises ConfigurationError for an unknown scheme, or when the extra that it needs is not installed.
    """
    scheme = url.partition("://")[0].lower()
    found = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if found is None or "://" not in url:
        guesses = close_matches(scheme.partition("+")[0], SCHEMES)
        hint = f"did you mean {guesses[0]}://?" if guesses else f"use {_EXAMPLES}"
        raise ConfigurationError(
            f"there is no result store for {scheme}://; {hint}", setting="result_backend"
        )
    module, name = found
    backend: Backend = getattr(import_module(module), name)(url, conf, clock)
    return backend


__all__ = ["Backend", "open_backend"]
