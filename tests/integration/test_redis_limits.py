"""Redis with a maximum size of values: larger ones are refused before the server disconnects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from qworker import QWorker, chord
from qworker.components.receiving.settlements import Settlements
from qworker.errors import ChordError, EncodeError, PublishError
from qworker.testing import MemoryStore, StepWorker
from qworker.transports.lease import Ack
from qworker.transports.redis.broker import RedisBroker
from tests.acceptance.private_servers import Redis, serving
from tests.support.messages import message
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

LIMIT = 2 * 1024**2


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with serving("redis") as server:
        assert isinstance(server, Redis)
        server.do("CONFIG", "SET", "proto-max-bulk-len", str(LIMIT))
        yield server


@pytest.fixture
def app(server: Redis) -> Iterator[QWorker]:
    app = QWorker("limits", broker=MemoryStore(), backend=server.url, set_as_current=False)
    yield app
    app.backend.close()


def test_oversized_message_is_refused(server: Redis) -> None:
    with closing(RedisBroker(server.url)) as store:
        with pytest.raises(PublishError, match="proto-max-bulk-len"):
            store.sender.push([message("large", body=b"x" * LIMIT)])
        store.sender.push([message("fits", body=b"x" * (LIMIT // 2))])
        assert [info.ready for info in store.admin.queues()] == [1]
        store.admin.purge("q")


def test_oversized_result_becomes_a_failure(server: Redis, app: QWorker) -> None:
    with closing(RedisBroker(server.url)) as store:
        generation = store.consumer.register("w@test", ["q"], 2)
        store.sender.push([message(str(number)) for number in range(3)])
        tags = [leased.tag for leased in store.consumer.lease(["q"], 3).messages]
        rows: list[Any] = [
            app.backend.row(name, app.backend.meta(name, "SUCCESS", "x" * size))
            for name, size in (("one", 1), ("large", LIMIT), ("two", LIMIT // 2))
        ]
        Settlements(app, store.consumer).carry_out(
            generation, [Ack(tag, row) for tag, row in zip(tags, rows, strict=True)]
        )
        assert store.admin.queues() == []
    states = {name: app.backend.get(name) for name in ("one", "large", "two")}
    assert {name: meta and meta["status"] for name, meta in states.items()} == {
        "one": "SUCCESS", "large": "FAILURE", "two": "SUCCESS"
    }  # fmt: skip
    assert "proto-max-bulk-len" in str(states["large"])


def test_result_backend_refuses_an_oversized_result(app: QWorker) -> None:
    meta = app.backend.meta("other", "SUCCESS", "x" * LIMIT)
    with pytest.raises(EncodeError, match="proto-max-bulk-len"):
        app.backend.store("other", meta)
    assert app.backend.store("small", app.backend.meta("small", "SUCCESS", 1))


@pytest.mark.parametrize("canvas_format", ["celery", "shared"])
def test_chord_body_with_oversized_values_fails(server: Redis, canvas_format: str) -> None:
    app = QWorker(
        "bodies", broker=server.url, backend=server.url, canvas_format=canvas_format, set_as_current=False
    )
    notified: list[str] = []

    @app.task(name="give")
    def give(size: int) -> str:
        return "x" * size

    @app.task(name="gather")
    def gather(values: list[str]) -> int:
        return sum(map(len, values))

    @app.task(name="tell")
    def tell(failed: str) -> None:
        notified.append(failed)

    with closing(app), StepWorker(app) as worker:
        body = gather.s().on_error(tell.si("it failed"))
        too_large = chord([give.s(LIMIT // 3)] * 3, body)()
        fits = chord([give.s(10)] * 3, gather.s())()
        until(lambda: worker.run() or (too_large.ready() and fits.ready() and bool(notified)))
        assert fits.get(timeout=5) == 30
        with pytest.raises(ChordError, match="proto-max-bulk-len"):
            too_large.get(timeout=5, follow_parents=False)
        assert notified == ["it failed"]
        assert app.backend.joins.count() == 0
