"""Connection and producer objects: with blocks, ensure_connection, and arguments of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import BrokerUnavailable, NotAvailable, PublishError
from qworker.publishing.connections import Connection
from qworker.testing.clock import FakeClock
from qworker.transports.lease import QueueInfo
from tests.support.stores import KeepingStore, make_app


class UnavailableStore(KeepingStore):
    """Fails the first *away* calls of depths()."""

    url = "keeping://user:secret@host"

    def __init__(self, away: int = 0) -> None:
        super().__init__()
        self.away = away

    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("the store is away")
        return []


def make(away: int = 0) -> QWorker:
    return QWorker("proj", broker=UnavailableStore(away), clock=FakeClock(), set_as_current=False)


def test_connection_as_a_context_manager() -> None:
    app = make()
    with app.connection_for_write() as connection, app.connection_for_read() as other, app.connection():
        assert connection.as_uri() == other.as_uri() == "keeping://user:********@host"
        assert connection.as_uri(include_password=True) == "keeping://user:secret@host"
        assert repr(connection) == "<Connection: keeping://user:********@host>"
        assert connection.connected
    assert not make(1).connection().connected


def test_ensure_connection_retries_up_to_max_retries() -> None:
    attempts: list[Any] = []
    app = make(2)
    connection = app.connection_for_write()
    assert (
        connection.ensure_connection(lambda error, pause: attempts.append((str(error), pause))) is connection
    )
    assert attempts == [("the store is away", 2), ("the store is away", 4)]
    with pytest.raises(BrokerUnavailable):
        make(2).connection().ensure_connection(max_retries=1)


def test_pools_provide_connections_and_producers() -> None:
    app, store, _ = make_app()
    add = app.task(name="add")(lambda x, y: x + y)
    with app.pool.acquire(block=True) as connection:
        add.apply_async((1, 2), connection=connection)
    with app.producer_pool.acquire(block=True, timeout=3) as producer:
        add.apply_async((1, 2), producer=producer)
    add.apply_async((1, 2), producer=None)
    app.pool.force_close_all()
    assert len(store.sent) == 3


@pytest.mark.parametrize("option", ["connection", "producer", "publisher"])
def test_connection_of_another_app_is_refused(option: str) -> None:
    app, store, _ = make_app()
    add = app.task(name="add")(lambda x, y: x + y)
    for given in (object(), Connection(make())):
        with pytest.raises(PublishError, match=f"{option}=.* is not a connection of this app"):
            add.apply_async((1, 2), **{option: given})
    assert not store.sent


def test_features_of_kombu_connections_are_refused_with_advice() -> None:
    app = make()
    with pytest.raises(NotAvailable, match=r"app\.connection\(url\): an app has one broker"):
        app.connection("redis://elsewhere")
    with pytest.raises(NotAvailable, match=r"app\.connection\(\)\.default_channel is not in qworker"):
        _ = app.connection().default_channel
    with pytest.raises(NotAvailable, match="a producer's publish is not in qworker: send calls with"):
        app.producer_pool.acquire().publish({})
