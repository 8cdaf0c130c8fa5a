"""A separate result backend that is killed, frozen and restarted: no task is lost, blocked or repeated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import Signature, chain, group
from qworker.components.receiving.fetch_window import MAX_WINDOW
from qworker.errors import QWorkerError
from tests.acceptance.harness import Site, opened
from tests.acceptance.ledger import STARTED
from tests.acceptance.private_servers import Redis, serving

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]


@pytest.fixture
def store() -> Iterator[Redis]:
    with serving("redis") as server:
        assert isinstance(server, Redis)
        yield server


@pytest.fixture
def site(tmp_path: Path, store: Redis) -> Iterator[Site]:
    with opened(tmp_path, result_backend=store.url) as site:
        yield site


def values(site: Site, ids: list[str]) -> list[object]:
    return [site.client.AsyncResult(id).get(timeout=60) for id in ids]


def runs(site: Site) -> int:
    return len(site.records(kind=STARTED))


@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("task", ["work", "work_async"])
def test_result_backend_outage_delays_acks_and_loses_nothing(
    site: Site, store: Redis, fault: str, task: str
) -> None:
    site.start("--concurrency", "2")
    (first,) = site.send_many(task, [(7,)])
    assert values(site, [first]) == [7]
    getattr(store, fault)()
    ids = site.send_many(task, [(number,) for number in range(2000)])
    site.until(lambda: runs(site) > 1, "tasks to run though the store is away")
    # It stops prefetching long before everything has run.
    site.until(lambda: _is_idle(site), "the worker to rest")
    ran = runs(site)
    assert ran < 4 * MAX_WINDOW
    assert site.waiting() == 2000
    store.start() if fault == "kill" else store.thaw()
    assert values(site, ids) == list(range(2000))
    site.drained()
    assert runs(site) == 2001


def _is_idle(site: Site) -> bool:
    """Whether nothing more starts within a second."""
    before = runs(site)
    time.sleep(1.0)
    return runs(site) == before


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_follow_up_calls_wait_for_the_result_backend(tmp_path: Path, kind: str) -> None:
    """The join of a chord that is next in a chain cannot be opened: the task runs again, and its chain
    continues."""
    with serving(kind) as server:
        results = server.url if kind == "redis" else f"db+{server.url}"
        with opened(tmp_path, result_backend=results) as site:
            worker = site.start("--concurrency", "2")
            go, app = tmp_path / "go", site.client
            both = group(Signature("close", app=app), Signature("close", app=app))
            result = chain(
                Signature("until_file", (str(go),), app=app), both, Signature("close", app=app)
            ).apply_async()
            site.until(lambda: site.records(kind=STARTED), "the first task to start")
            server.kill()
            go.touch()
            site.until(lambda: "a call after it cannot be sent" in worker.log, "it to be put back")
            server.start()
            site.until(lambda: _is_ready(result), "the chain to end")
            assert result.get(timeout=10) == [str(go)] * 2
            site.drained()
            site.until(lambda: app.backend.joins.count() == 0, "the joins to be done")
            bodies = (tmp_path / "bodies").read_text().split()
            assert len({*bodies[::2]}) == 3


def _is_ready(result: Any) -> bool:
    try:
        return bool(result.ready())
    except QWorkerError:
        return False


def test_worker_stopped_during_the_outage_leaves_tasks_to_the_next(site: Site, store: Redis) -> None:
    worker = site.start("--concurrency", "2", environment={"QWORKER_RESULT_STORE_PATIENCE": "1"})
    store.kill()
    ids = site.send_many("work", [(number,) for number in range(10)])
    site.ended(*ids[:2])
    worker.stop()
    assert "results were not stored: those tasks will run again" in worker.log
    assert site.waiting() == 10
    store.start()
    site.start("--concurrency", "2")
    assert values(site, ids) == list(range(10))
    site.drained()


def test_worker_killed_between_result_and_ack_only_repeats_tasks(
    site: Site, store: Redis, tmp_path: Path
) -> None:
    hit = tmp_path / "hit"
    worker = site.start(
        "--concurrency", "2", ready=False, environment={"QWORKER_CRASH_AT": f"settling@{hit}"}
    )
    ids = site.send_many("work", [(number,) for number in range(20)])
    site.until(hit.exists, "the crash")
    worker.wait()
    assert any(site.client.AsyncResult(id).ready() for id in ids)
    assert site.waiting() == 20
    site.start("--concurrency", "2")
    assert values(site, ids) == list(range(20))
    site.drained()
    assert runs(site) > 20
