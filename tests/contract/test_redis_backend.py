"""The Redis result backend: Celery's keys and channels, broken connections, waiting in asyncio."""

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


class Env:
    """An app with results under a new prefix, and a plain client."""

    def __init__(self) -> None:
        self.url = require("redis")
        self.prefix = f"{uuid.uuid4().hex}:"
        self.client = redis.Redis.from_url(self.url)
        self.app = self.make_app()

    def make_app(self, **settings: Any) -> QWorker:
        options = {"global_keyprefix": self.prefix, "client_name": self.prefix}
        return QWorker(
            "env",
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
        """Have the server close every connection of the app."""
        for connection in self.client.client_list():
            if connection["name"] == self.prefix:
                self.client.client_kill_filter(_id=connection["id"])

    def later(self, work: Callable[[], Any], seconds: float = 0.1) -> threading.Timer:
        timer = threading.Timer(seconds, work)
        timer.start()
        return timer


@pytest.fixture
def env() -> Iterator[Env]:
    made = Env()
    yield made
    made.app.close()
    for key in made.client.scan_iter(f"{made.prefix}*", count=10_000):
        made.client.delete(key)
    made.client.close()


def test_key_value_expiry_and_message_are_celerys(env: Env) -> None:
    with env.client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(env.key("x"))
        listener.get_message(timeout=5)
        env.store("x", 5)
        message = listener.get_message(timeout=5) or listener.get_message(timeout=5)
    stored = env.client.get(env.key("x"))
    assert stored is not None
    assert message is not None
    assert message["data"] == stored
    meta = json.loads(stored)
    assert (meta["status"], meta["result"], meta["task_id"]) == ("SUCCESS", 5, "x")
    assert 86_000_000 < env.client.pttl(env.key("x")) <= 86_400_000
    assert env.client.keys(f"{env.prefix}*") == [env.key("x").encode()]


def test_refused_result_is_not_published(env: Env) -> None:
    env.store("x", 5)
    with env.client.pubsub(ignore_subscribe_messages=True) as listener:
        listener.subscribe(env.key("x"))
        listener.get_message(timeout=5)
        env.store("x", {}, "FAILURE")
        assert listener.get_message(timeout=0.1) is None


def test_backend_reconnects_after_closed_connections(env: Env) -> None:
    env.store("x", 1)
    for step in (
        lambda: env.store("y", 2),
        lambda: env.backend.get("x"),
        lambda: env.backend.get_many(["x"]),
    ):
        env.kill_connections()
        step()


def test_wait_reconnects_if_closed_since_the_last_wait(env: Env) -> None:
    for number in range(3):
        storing = env.later(lambda number=number: env.store(f"x{number}", number))  # type: ignore[misc]
        assert env.backend.wait([f"x{number}"], 10)[f"x{number}"]["result"] == number
        storing.join()
        env.kill_connections()


def test_wait_reconnects_if_closed_while_waiting(env: Env) -> None:
    kill = env.later(env.kill_connections)
    storing = env.later(lambda: env.store("x", 1), 0.3)
    assert env.backend.wait(["x"], 10)["x"]["result"] == 1
    kill.join()
    storing.join()


def test_awaiting_callers_are_notified_without_polling(env: Env) -> None:
    ids = [uuid.uuid4().hex for _ in range(50)]
    env.store(ids[0], ids[0])

    async def main() -> float:
        results = asyncio.gather(*[AsyncResult[Any](task_id, app=env.app) for task_id in ids])
        await asyncio.sleep(0.2)
        began = time.monotonic()
        for task_id in ids[1:]:
            await asyncio.to_thread(env.store, task_id, task_id)
        assert await results == ids
        assert await AsyncResult[Any](ids[7], app=env.make_app()) == ids[7]
        return time.monotonic() - began

    assert asyncio.run(main()) < len(ids) * 0.5 / 2  # polling would take half a second each


def test_await_reconnects_if_closed_while_waiting(env: Env) -> None:
    async def main() -> None:
        result = asyncio.ensure_future(asyncio.wait_for(AsyncResult[Any]("x", app=env.app), 10))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(env.kill_connections)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(env.store, "x", 1)
        assert await result == 1

    asyncio.run(main())


def test_consecutive_awaits_in_one_loop(env: Env) -> None:
    async def main() -> None:
        for number in range(30):
            env.later(lambda number=number: env.store(f"x{number}", number), 0.002)  # type: ignore[misc]
            assert await asyncio.wait_for(AsyncResult[Any](f"x{number}", app=env.app), 10) == number

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
def test_same_store_compares_server_and_database(backend: str, broker: str, same: bool, env: Env) -> None:
    assert env.make_app(backend=backend).backend.same_store(broker) is same


def test_unreachable_server_raises_backend_error_without_password(env: Env) -> None:
    backend = env.make_app(backend="redis://me:hunter2@127.0.0.1:1/0").backend
    for step in (lambda: backend.get("x"), lambda: backend.wait(["x"], 1), lambda: backend.add("x")):
        with pytest.raises(BackendError) as caught:
            step()
        assert "hunter2" not in str(caught.value)
        assert "127.0.0.1:1" in str(caught.value)
