"""Results in memcached, under Celery's keys.

Comes from:  ``result_backend = "cache+memcached://host:11211/"``; several servers are separated by
             semicolons.
Goes to:     the servers, using pymemcache; they expire results, or evict them earlier when memory is short.
Thread:      any; a pool of connections, which is not shared across a fork.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any, TypeVar

from qworker import states
from qworker.backends.base import Backend, Found, Meta
from qworker.backends.keyvalue.keys import GROUP_PREFIX, LOCK_PREFIX, TASK_PREFIX
from qworker.clock import Clock
from qworker.errors import BackendError, ConfigurationError, EncodeError
from qworker.interrupts import in_helper_thread
from qworker.naming import install_command
from qworker.transports.connect_errors import refuse_parameters
from qworker.transports.lease import ResultRow

try:
    pymemcache: Any = import_module("pymemcache")  # it has no types
except ImportError as error:
    raise ConfigurationError(
        f"cache+memcached:// needs pymemcache, which is not installed: {install_command('memcache')}",
        setting="result_backend",
    ) from error

T = TypeVar("T")

PORT = 11211
CONNECT_TIMEOUT, TIMEOUT = 5.0, 10.0
LONGEST_KEY = 240
ABSOLUTE_SECONDS = 30 * 86400
"""The server interprets a larger expiry as an epoch second."""


class MemcachedBackend(Backend):
    """Results on one server, or distributed over several; it connects on first use."""

    def __init__(self, url: str, conf: Any, clock: Clock) -> None:
        super().__init__(url, conf, clock)
        refuse_parameters(url, "result_backend")
        text = url.partition("://")[2].strip("/")
        self._servers = (
            [_address(url, server) for server in text.split(";")] if text else [("127.0.0.1", PORT)]
        )
        self._prefix: str = conf.result_backend_transport_options.get("global_keyprefix", "")
        self._pid = 0
        self._client: Any = None

    # -- commands --

    def _do(self, work: Callable[[Any], T], tries: int = 2) -> T:
        """Return *work* applied to a client. tries: 1 for operations that must not be repeated."""
        return in_helper_thread(lambda: self._try(work, tries))

    def _try(self, work: Callable[[Any], T], tries: int) -> T:
        if self._pid != os.getpid():
            options = {
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": TIMEOUT,
                "no_delay": True,
                "allow_unicode_keys": True,
                "default_noreply": False,
            }
            if len(self._servers) == 1:
                self._client = pymemcache.PooledClient(self._servers[0], **options)
            else:
                self._client = pymemcache.HashClient(self._servers, use_pooling=True, **options)
            self._pid = os.getpid()
        while True:
            tries -= 1
            try:
                return work(self._client)
            except (pymemcache.MemcacheError, OSError) as error:
                if "too large" in str(error):
                    raise EncodeError(f"the result is too large for {self.safe_url}: {error}") from error
                if isinstance(
                    error, pymemcache.MemcacheClientError
                ):  # the request is invalid; the server is not at fault
                    raise EncodeError(f"{self.safe_url} cannot store the result: {error}") from error
                if tries <= 0:
                    raise BackendError(f"{self.safe_url}: {error or type(error).__name__}") from error

    def _key(self, prefix: str, name: str) -> str:
        """Return a valid memcached key. A name that makes it too long, or unprintable, is hashed."""
        key = f"{self._prefix}{prefix}{name}"
        if len(key.encode()) <= LONGEST_KEY and not any(
            char.isspace() or not char.isprintable() for char in key
        ):
            return key
        return f"{self._prefix}{prefix}sha256-{sha256(name.encode()).hexdigest()}"

    def _lasting(self, seconds: float | None) -> int:
        if seconds is None:
            return 0
        whole = max(1, math.ceil(seconds))
        return whole if whole <= ABSOLUTE_SECONDS else int(self.clock.now()) + whole

    # -- tasks --

    def store(self, task_id: str, meta: Meta) -> bool:
        return self._store(task_id, meta["status"], self.codec.encode(meta), self._lasting(self.expires))

    def store_rows(self, rows: Sequence[ResultRow]) -> None:
        now = self.clock.now()
        for task_id, status, payload, expires in rows:
            self._store(task_id, status, payload, self._lasting(None if expires is None else expires - now))

    def _store(self, task_id: str, status: str, data: bytes, lasting: int) -> bool:
        key = self._key(TASK_PREFIX, task_id)
        while True:
            old, token = self._do(lambda client: client.gets(key))
            if old is None:
                # Not retried: after a lost answer, this state would seem to be stored by another process.
                if self._do(lambda client: client.add(key, data, lasting), tries=1):
                    return True
            elif not states.may_replace(self.codec.status_of(old), status):
                return False
            elif self._do(lambda client, token=token: client.cas(key, data, token, lasting), tries=1):  # type: ignore[misc]
                return True

    def get(self, task_id: str) -> Meta | None:
        data = self._do(lambda client: client.get(self._key(TASK_PREFIX, task_id)))
        return None if data is None else self.codec.decode(data, task_id)

    def read_many(self, ids: Collection[str]) -> dict[str, Found]:
        keys = {self._key(TASK_PREFIX, task_id): task_id for task_id in ids}
        found = self._do(lambda client: client.get_many(list(keys))) if keys else {}
        return {keys[key]: self.codec.found(data, keys[key]) for key, data in found.items()}

    def forget(self, task_id: str) -> None:
        self._do(lambda client: client.delete(self._key(TASK_PREFIX, task_id)))

    def forget_many(self, ids: Iterable[str]) -> None:
        keys = [self._key(TASK_PREFIX, task_id) for task_id in ids]
        self._do(lambda client: client.delete_many(keys))

    # -- locks and counters --

    def add(self, key: str, ttl: float | None = None) -> bool:
        name, lasting = self._key(LOCK_PREFIX, key), self._lasting(ttl)
        return bool(self._do(lambda client: client.add(name, b"1", lasting), tries=1))

    def incr(self, key: str, ttl: float | None = None) -> int:
        name, lasting = self._key(LOCK_PREFIX, key), self._lasting(ttl)
        while True:
            value = self._do(lambda client: client.incr(name, 1), tries=1)
            if value is not None:
                self._do(lambda client: client.touch(name, lasting))
                return int(value)
            if self.add(key, ttl):
                return 1

    def delete(self, key: str) -> None:
        self._do(lambda client: client.delete(self._key(LOCK_PREFIX, key)))

    # -- groups --

    def save_group(self, group_id: str, result: Any, kept: float = 0.0) -> None:
        key, data = (
            self._key(GROUP_PREFIX, group_id),
            self.codec.encode_value({"result": result}, ("group", group_id)),
        )
        lasting = self._lasting(None if self.expires is None else self.expires + kept)
        self._do(lambda client: client.set(key, data, lasting))

    def get_group(self, group_id: str) -> Any:
        data = self._do(lambda client: client.get(self._key(GROUP_PREFIX, group_id)))
        return None if data is None else self.codec.decode_value(data, ("group", group_id))["result"]

    def delete_group(self, group_id: str) -> None:
        self._do(lambda client: client.delete(self._key(GROUP_PREFIX, group_id)))

    def close(self) -> None:
        super().close()
        if self._client is not None and self._pid == os.getpid():
            self._client.close()


def _address(url: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    if not host or (port and not port.isdecimal()):
        raise ConfigurationError(
            f"{url!r} does not name memcached servers: write cache+memcached://host:11211/",
            setting="result_backend",
        )
    return host.strip("[]"), int(port or PORT)
