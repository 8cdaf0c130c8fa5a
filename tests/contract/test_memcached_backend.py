"""The memcached result backend: its limits, its clock, several servers, broken connections."""

from __future__ import annotations

import uuid
from typing import Any

import pymemcache
import pytest

from qworker.backends import open_backend
from qworker.backends.keyvalue.memcached import MemcachedBackend
from qworker.clock import SYSTEM_CLOCK
from qworker.conf import Settings
from qworker.errors import BackendError, ConfigurationError, EncodeError
from tests.contract.test_backends import keep_longer
from tests.servers import require
from tests.support.waiting import until

pytestmark = pytest.mark.contract


def make(url: str | None = None, **values: Any) -> MemcachedBackend:
    options = {"result_backend_transport_options": {"global_keyprefix": f"{uuid.uuid4().hex}:"}}
    address = f"cache+{require('memcached')}" if url is None else url
    backend = open_backend(address, Settings({**options, **values}, environ={}), SYSTEM_CLOCK)
    assert isinstance(backend, MemcachedBackend)
    return backend


def store(backend: MemcachedBackend, task_id: str, result: Any = None) -> bool:
    return backend.store(task_id, backend.meta(task_id, "SUCCESS", result))


def test_results_locks_and_counters_expire() -> None:
    backend = make(result_expires=1)
    store(backend, "x")
    backend.save_group("g", [["a", None], None])
    seconds = 2  # memcached's clock ticks once a second: one second may end at once
    assert backend.add("lock", seconds)
    assert not backend.add("lock", seconds)
    assert [backend.incr("n", seconds), backend.incr("n", seconds)] == [1, 2]
    until(lambda: backend.get("x") is None)
    until(lambda: backend.get_group("g") is None)
    until(lambda: backend.add("lock", 60))
    until(lambda: backend.incr("n", 60) == 1)


def test_results_for_a_join_are_kept_longer() -> None:
    backend = make(result_expires=1)
    keep_longer(backend, 600.0)
    until(lambda: backend.get("other") is None and backend.get_group("other group") is None)
    assert (backend.get("kept") or {})["result"] == 7
    assert backend.get_group("kept group") is not None


def test_long_expiry_is_not_interpreted_as_a_timestamp() -> None:
    backend = make(result_expires=90 * 86400)
    store(backend, "x")
    assert backend.get("x") is not None


def test_key_is_celerys() -> None:
    backend = make(result_backend_transport_options={})
    task_id = str(uuid.uuid4())
    store(backend, task_id)
    client = pymemcache.Client(backend._servers[0])
    assert b'"SUCCESS"' in client.get(f"celery-task-meta-{task_id}")
    backend.forget(task_id)
    assert client.get(f"celery-task-meta-{task_id}") is None
    client.close()


def test_result_over_the_item_limit_raises_encode_error() -> None:
    with pytest.raises(EncodeError, match="too large for cache"):
        store(make(), "x", "x" * 2_000_000)


def test_results_are_distributed_over_several_servers() -> None:
    address = require("memcached").partition("://")[2].strip("/")
    backend = make(f"cache+memcached://{address};{address.replace('127.0.0.1', 'localhost')}/")
    ids = [str(number) for number in range(50)]
    for task_id in ids:
        assert store(backend, task_id, task_id)
    assert {key: meta["result"] for key, meta in backend.get_many(ids).items()} == {key: key for key in ids}
    assert not store(backend, "7")


def test_unavailable_server_raises_backend_error() -> None:
    backend = make("cache+memcached://127.0.0.1:1/")
    for step in (lambda: store(backend, "x"), lambda: backend.get("x"), lambda: backend.add("x")):
        with pytest.raises(BackendError, match=r"127\.0\.0\.1:1"):
            step()


def test_backend_reconnects_after_closed_connections() -> None:
    backend = make()
    store(backend, "x")
    for client in list(backend._client.client_pool._free_objs):
        client.sock.shutdown(2)
    assert backend.get("x") is not None


@pytest.mark.parametrize("url", ["cache+memcached://:1", "cache+memcached://host:port"])
def test_url_without_a_valid_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memcached"):
        make(url)
