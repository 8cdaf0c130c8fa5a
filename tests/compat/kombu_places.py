"""Our brokers that Celery uses with ``qworker+`` URLs: an empty place for each.

Comes from:  test_celery_stores.py, which only uses the interface of Place.
Goes to:     the test servers, by URL and options, which are given to worker processes.
Thread:      the test's.

For a new broker, add a function and a line in PLACES.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.acceptance.sqs_server import REGION, Sqs
from tests.contract.place_mongodb import MongoPlace
from tests.contract.place_nats import NatsPlace
from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace
from tests.servers import prefix_of, require
from tests.support.disque_server import DisqueServer
from tests.support.ironmq_server import TOKEN, IronMQ


class Place(NamedTuple):
    """url: without ``qworker+``. options: of the transport. clear: removes everything. cut: closes all
    connections to it. fanout: Celery's remote control works. due: delayed messages wait in the broker,
    which counts them."""

    url: str
    options: dict[str, Any]
    clear: Callable[[], object] = lambda: None
    cut: Callable[[], object] = lambda: None
    fanout: bool = True
    due: bool = True


def _sqlite(path: Path) -> Place:
    return Place(f"sqlite:///{path}/queue.db", {})


def _redis(path: Path) -> Place:
    return Place(require("redis"), {"global_keyprefix": prefix_of(path)})


def _postgresql(path: Path) -> Place:
    place = PostgreSQLPlace(path)
    return Place(place.url, {}, place.clear, place.end_connections)


def _mysql(path: Path) -> Place:
    place = MySQLPlace(path)
    return Place(place.url, {}, place.clear)


def _mongodb(path: Path) -> Place:
    place = MongoPlace(path)
    return Place(place.url, {}, place.clear)


def _nats(path: Path) -> Place:
    place = NatsPlace(path)
    return Place(place.url, {"stream": place.layout.stream}, place.clear, fanout=False, due=False)


def _disque(path: Path) -> Place:
    server = DisqueServer()
    return Place(server.url, {"retry": 3}, server.close, fanout=False, due=False)


def _ironmq(path: Path) -> Place:
    server = IronMQ()
    url = f"ironmq+http://project:{TOKEN}@127.0.0.1:{server.port}"
    return Place(url, {"visibility_timeout": 30}, server.close, fanout=False, due=False)


def _sqs(path: Path) -> Place:
    server = Sqs()
    options = {"region": REGION, "visibility_timeout": 3, "wait_time_seconds": 1}
    return Place(server.url, options, server.close, fanout=False, due=False)


PLACES: dict[str, Callable[[Path], Place]] = {
    "sqlite": _sqlite,
    "redis": _redis,
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mongodb": _mongodb,
    "nats": _nats,
    "disque": _disque,
    "ironmq": _ironmq,
    "sqs": _sqs,
}


def each(*names: str, always: Collection[str]) -> list[Any]:
    """Test params for these PLACES. Those not in *always* are marked more_brokers."""
    return [pytest.param(name, marks=[] if name in always else [pytest.mark.more_brokers]) for name in names]
