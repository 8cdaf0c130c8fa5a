"""One suite for the registries of all brokers that have one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker.transports.lease import Broker
from qworker.transports.registry import LocalRegistry, Registry
from qworker.transports.sql.embedded.broker import SQLiteBroker
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_redis import RedisPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace

pytestmark = pytest.mark.contract


class SQLitePlace:
    def __init__(self, directory: Path) -> None:
        self._url = f"sqlite:///{directory}/queue.db"

    def open(self) -> Broker:
        return SQLiteBroker(self._url)

    def clear(self) -> None:
        pass


@pytest.fixture(params=[SQLitePlace, RedisPlace, PostgreSQLPlace, MySQLPlace, MongoPlace])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    place = request.param(tmp_path)
    yield place
    place.clear()


def check(registry: Registry, other: Registry) -> None:
    """Check *registry* and *other*, two views of the same registry."""
    assert registry.entries() == {}
    registry.drop(["nothing"])
    registry.put({})
    long = "é" * 2000
    registry.put({"a": None, "b": 1_700_000_000.25, long: 5.0, '["queue", "q%s"]': None})
    assert other.entries() == {"a": None, "b": 1_700_000_000.25, long: 5.0, '["queue", "q%s"]': None}
    other.put({"a": 7.5, "b": None})
    other.drop([long, "nothing"])
    assert registry.entries() == {"a": 7.5, "b": None, '["queue", "q%s"]': None}
    other.drop(registry.entries())
    assert registry.entries() == {}


def test_registry_is_shared_by_all_connections(place: Any) -> None:
    with closing(place.open()) as one, closing(place.open()) as other:
        assert one.registry is not None
        assert other.registry is not None
        check(one.registry, other.registry)


def test_local_registry_behaves_the_same() -> None:
    registry = LocalRegistry()
    check(registry, registry)
