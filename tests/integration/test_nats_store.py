"""NATS JetStream for one process. (tests/acceptance/test_nats.py has workers.)"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.lease import Ack, Release
from tests.contract.place_nats import NatsPlace
from tests.support.messages import envelope
from tests.support.receiving import receive

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: Path) -> Iterator[KombuBroker]:
    place = NatsPlace(tmp_path)
    store = place.open()
    yield store
    store.close()
    place.clear()


def test_calls_are_few(store: KombuBroker) -> None:
    own = store.consumer.register("w", ["q"], 1)
    connection = store.consumer._connection
    before = connection.exchanges
    store.sender.push([envelope(str(number), "q") for number in range(1000)])
    for _ in range(10):
        found = receive(store, 100, "q")
        store.consumer.settle(own, [Ack(message.tag) for message in found])
    assert store.admin.depths(["q"])[0].ready == 0
    assert 10 < connection.exchanges - before < 100


def test_what_is_released_for_later_comes_later(store: KombuBroker) -> None:
    own = store.consumer.register("w", ["q"], 1)
    store.sender.push([envelope("a", "q")])
    (message,) = receive(store, 1, "q")
    due = time.time() + 1.5
    store.consumer.settle(own, [Release(message.tag, due)])
    (again,) = receive(store, 1, "q")
    assert time.time() >= due
    assert store.consumer.settle(own, [Ack(again.tag)]) == set()
