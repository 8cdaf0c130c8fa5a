"""Callers that wait for results while the result backend restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import BackendError
from tests.acceptance.private_servers import Server, serving
from tests.support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("kind", ["redis", "postgresql", "mariadb"]),
]


@pytest.fixture
def server(kind: str) -> Iterator[Server]:
    with serving(kind) as server:
        yield server


def app_on(server: Server, kind: str) -> QWorker:
    url = server.url if kind == "redis" else f"db+{server.url}"
    return QWorker("proj", broker="memory://", backend=url, set_as_current=False)


def test_get_and_await_survive_a_result_backend_restart(server: Server, kind: str) -> None:
    caller, worker = app_on(server, kind), app_on(server, kind)
    with caller, worker:
        got: dict[str, Any] = {}

        async def awaited() -> Any:
            return await caller.AsyncResult("b")

        def get() -> None:
            got["a"] = caller.AsyncResult("a").get(timeout=PATIENCE)

        def run() -> None:
            got["b"] = asyncio.run(awaited())

        threads = [threading.Thread(target=work, daemon=True) for work in (get, run)]
        for thread in threads:
            thread.start()
        until(lambda: caller.backend.watcher.waited_for() == {"a", "b"})
        time.sleep(0.6)  # the waiters have polled by now
        server.kill()
        time.sleep(2.0)
        server.start()
        for id, value in (("a", 1), ("b", 2)):
            until(lambda id=id, value=value: stored(worker, id, value))
        for thread in threads:
            thread.join(PATIENCE)
        assert got == {"a": 1, "b": 2}


def stored(app: QWorker, id: str, value: int) -> bool:
    with suppress(BackendError):
        app.backend.store(id, app.backend.meta(id, "SUCCESS", value))
        return True
    return False
