"""Result stores, found by the scheme of their URL; each is imported when it is first asked for.

Modules, in reading order: ``base`` (what a store is), ``by_hand`` (what programs ask of it), ``joins`` (what
waits for the members of a group), ``keys``, ``keyvalue`` with ``keyvalue_joins``; the stores ``sqlite`` with
``sqlite_joins``, ``redis`` with ``redis_joins`` and ``redis_subscription``, ``sql`` with ``sql_tables``,
``sql_database``, ``sql_keys``, ``sql_joins``, ``sql_columns``, ``stored_pickle`` and ``sql_listen``, ``rpc``
with ``rpc_connection``, ``newest``, ``rpc_replies`` and ``rpc_sender``, ``mongodb`` with ``mongodb_fields``
and ``mongodb_settings``, ``filesystem``, ``memcached``, ``memory``, ``disabled``; ``watched``,
``result_watcher`` and ``waiters`` (the one way to wait for results), ``place`` (where results are when
nothing says where), ``stores`` (those of an app).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qworker.backends.base import Backend
from qworker.clock import Clock
from qworker.errors import ConfigurationError
from qworker.naming import near

SCHEMES: dict[str, tuple[str, str]] = {
    "sqlite": ("qworker.backends.sqlite", "SQLiteBackend"),
    "redis": ("qworker.backends.redis", "RedisBackend"),
    "rediss": ("qworker.backends.redis", "RedisBackend"),
    "valkey": ("qworker.backends.redis", "RedisBackend"),
    "valkeys": ("qworker.backends.redis", "RedisBackend"),
    "unix": ("qworker.backends.redis", "RedisBackend"),
    "sentinel": ("qworker.backends.redis", "RedisBackend"),
    "db": ("qworker.backends.sql", "SQLBackend"),
    "mongodb": ("qworker.backends.mongodb", "MongoBackend"),
    "file": ("qworker.backends.filesystem", "FilesystemBackend"),
    "cache+memory": ("qworker.backends.memory", "MemoryBackend"),
    "cache+memcached": ("qworker.backends.memcached", "MemcachedBackend"),
    "cache+pylibmc": ("qworker.backends.memcached", "MemcachedBackend"),
    "rpc": ("qworker.backends.rpc", "RpcBackend"),
    "disabled": ("qworker.backends.disabled", "DisabledBackend"),
}
"""Where the class for each scheme is; ``db+postgresql`` is found by what stands before the plus."""

_EXAMPLES = (
    "sqlite:///results.db, redis://host:6379/0, db+postgresql://user@host/name, file:///directory, "
    "cache+memory:// or disabled://"
)


def open_backend(url: str, conf: Any, clock: Clock) -> Backend:
    """Return the result store at *url*; it connects at its first use.

    Raises ConfigurationError for a scheme there is no store for, or when the extra that it needs is not
    installed.
    """
    scheme = url.partition("://")[0].lower()
    found = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if found is None or "://" not in url:
        guesses = near(scheme.partition("+")[0], SCHEMES)
        hint = f"did you mean {guesses[0]}://?" if guesses else f"use {_EXAMPLES}"
        raise ConfigurationError(
            f"there is no result store for {scheme}://; {hint}", setting="result_backend"
        )
    module, name = found
    backend: Backend = getattr(import_module(module), name)(url, conf, clock)
    return backend


__all__ = ["Backend", "open_backend"]
