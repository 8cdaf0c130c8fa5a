"""What only the result store on Redis does: Celery's keys and channels, connections that break, waiting in
asyncio."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from qworker import QWorker
from qworker.backends.redis.backend import RedisBackend
from qworker.errors import BackendError
from qworker.results.result import AsyncResult
from qworker.testing import FakeClock, MemoryStore
from tests.servers import require

pytestmark = pytest.mark.contract


class Shop:
    """An app with results under a prefix of its own, and a plain client beside it."""

    def __init__(self) -> None:
        self.url = require("redis")
        self.prefix = f"{uuid.uuid4().hex}:"
        self.client = redis.Redis.from_url(self.url)
        self.app = self.make_app()

    def make_app(self, **settings: Any) -> QWorker:
        options = {"global_keyprefix": self.prefix, "client_name": self.prefix}
        return QWorker(
            "shop",
            broker=MemoryStore(FakeClock()),
            backend=settings.pop("backend", self.url),
            set_as_current=False,
            result_backend_transport_options=options,
            **settings,
        )

    @property
    def backend(self) -> RedisBackend:
        backend = self.app.backend
        assert isinstance(backend, RedisBackend)
        return backend

    def store(self, task_id: str, result: Any = None, status: str = "SUCCESS") -> None:
        self.backend.store(task_id, self.backend.meta(task_id, status, result))

    def key(self, task_id: str) -> str:
        return f"{self.prefix}celery-task-meta-{task_id}"

    def kill_connections(self) -> None:
        """Let the server close every connection of the app."""
        for connection in self.client.client_list():
            if connection["name"] == self.prefix:
                self.client.client_kill_filter(_id=connection["id"])

    def later(self, work: Callable[[], Any], seconds: float = 0.1) -> threading.Timer:
        timer = threading.Timer(seconds, work)
        timer.start()
        return timer


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop()
    yield made
    made.app.close()
    for key in made.client.scan_iter(f"{made.prefix}*", count=10_000):
        made.client.delete(key)
    made.client.close()


def test_key_value_expiry_and_message_are_those_of_celery(shop: Shop) -> None:
    with shop.client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(shop.key("x"))
        listener.get_message(timeout=5)
        shop.store("x", 5)
        message = listener.get_message(timeout=5) or listener.get_message(timeout=5)
    stored = shop.client.get(shop.key("x"))
    assert stored is not None
    assert message is not None
    assert message["data"] == stored
    meta = json.loads(stored)
    assert (meta["status"], meta["result"], meta["task_id"]) == ("SUCCESS", 5, "x")
    assert 86_000_000 < shop.client.pttl(shop.key("x")) <= 86_400_000
    assert shop.client.keys(f"{shop.prefix}*") == [shop.key("x").encode()]


def test_what_was_refused_is_not_told(shop: Shop) -> None:
    shop.store("x", 5)
    with shop.client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(shop.key("x"))
        listener.get_message(timeout=5)
        shop.store("x", {}, "FAILURE")
        assert listener.get_message(timeout=0.1) is None


def test_it_goes_on_when_the_server_closed_its_connections(shop: Shop) -> None:
    shop.store("x", 1)
    for step in (
        lambda: shop.store("y", 2),
        lambda: shop.backend.get("x"),
        lambda: shop.backend.get_many(["x"]),
    ):
        shop.kill_connections()
        step()


def test_who_has_waited_before_waits_again_after_its_connection_was_closed(shop: Shop) -> None:
    for number in range(3):
        tell = shop.later(lambda number=number: shop.store(f"x{number}", number))  # type: ignore[misc]
        assert shop.backend.wait([f"x{number}"], 10)[f"x{number}"]["result"] == number
        tell.join()
        shop.kill_connections()


def test_who_waits_hears_the_result_though_its_connection_was_closed_meanwhile(shop: Shop) -> None:
    kill = shop.later(shop.kill_connections)
    tell = shop.later(lambda: shop.store("x", 1), 0.3)
    assert shop.backend.wait(["x"], 10)["x"]["result"] == 1
    kill.join()
    tell.join()


def test_who_awaits_is_woken_and_so_are_many(shop: Shop) -> None:
    ids = [uuid.uuid4().hex for _ in range(50)]
    shop.store(ids[0], ids[0])

    async def main() -> float:
        results = asyncio.gather(*[AsyncResult[Any](task_id, app=shop.app) for task_id in ids])
        await asyncio.sleep(0.2)
        began = time.monotonic()
        for task_id in ids[1:]:
            await asyncio.to_thread(shop.store, task_id, task_id)
        assert await results == ids
        assert await AsyncResult[Any](ids[7], app=shop.make_app()) == ids[7]
        return time.monotonic() - began

    assert asyncio.run(main()) < len(ids) * 0.5 / 2  # and not half a second for each


def test_who_awaits_survives_a_closed_connection(shop: Shop) -> None:
    async def main() -> None:
        result = asyncio.ensure_future(asyncio.wait_for(AsyncResult[Any]("x", app=shop.app), 10))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(shop.kill_connections)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(shop.store, "x", 1)
        assert await result == 1

    asyncio.run(main())


def test_the_loop_has_a_new_await_while_the_last_one_ends(shop: Shop) -> None:
    async def main() -> None:
        for number in range(30):
            shop.later(lambda number=number: shop.store(f"x{number}", number), 0.002)  # type: ignore[misc]
            assert await asyncio.wait_for(AsyncResult[Any](f"x{number}", app=shop.app), 10) == number

    asyncio.run(main())


@pytest.mark.parametrize(
    ("backend", "broker", "same"),
    [
        ("redis://127.0.0.1:6379/9", "redis://127.0.0.1:6379/9", True),
        ("redis://127.0.0.1:6379/9", "redis://:secret@127.0.0.1/9", True),
        ("redis://127.0.0.1:6379/9", "redis://127.0.0.1:6379/8", False),
        ("redis://127.0.0.1:6379/9", "sqlite:///x.db", False),
    ],
)
def test_whether_the_messages_are_in_the_same_database(
    backend: str, broker: str, same: bool, shop: Shop
) -> None:
    assert shop.make_app(backend=backend).backend.same_store(broker) is same


def test_an_unreachable_server_is_a_backend_error_without_the_password(shop: Shop) -> None:
    backend = shop.make_app(backend="redis://me:hunter2@127.0.0.1:1/0").backend
    for step in (lambda: backend.get("x"), lambda: backend.wait(["x"], 1), lambda: backend.add("x")):
        with pytest.raises(BackendError) as caught:
            step()
        assert "hunter2" not in str(caught.value)
        assert "127.0.0.1:1" in str(caught.value)
