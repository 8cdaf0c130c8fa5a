"""What is seen of a real worker from another process, while it works, rests, stops and dies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker.transports.presence import Presence
from tests.acceptance.harness import Site
from tests.acceptance.private_servers import Redis
from tests.acceptance.processes import kill

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture(params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        with closing(Site(tmp_path)) as site:
            yield site
        return
    with (
        closing(Redis()) as server,
        closing(Site(tmp_path, broker=server.url, result_backend=f"sqlite:///{tmp_path / 'r.db'}")) as site,
    ):
        yield site


def seen(site: Site) -> list[Presence]:
    return site.client.broker.admin.workers()


def status(site: Site) -> list[str]:
    return [worker.status for worker in seen(site)]


def test_a_worker_is_seen_at_work_at_rest_and_no_more(place: Site) -> None:
    worker = place.start("-Q", "celery,mail")
    place.until(lambda: status(place) == ["idle"], "an idle worker")
    go = place.path / "go"
    id = place.send("until_file", str(go))
    place.until(lambda: status(place) == ["working"], "a worker at work")
    (found,) = seen(place)
    assert (found.name, found.pid, found.queues, found.concurrency) == (
        "one@test", worker.pid, ("celery", "mail"), 2,
    )  # fmt: skip
    assert sorted(found.pool) == sorted(worker.wait_pool(2))
    (task,) = found.running
    assert (task.id, task.name, task.queue, found.busy) == (id, "until_file", "celery", 1)
    assert task.pid in found.pool
    assert found.started <= task.started <= found.seen
    go.touch()
    place.until(lambda: status(place) == ["idle"], "it to rest again")
    assert (seen(place)[0].busy, seen(place)[0].totals["finished"]) == (0, 1)
    kill(worker.wait_pool(2)[0])
    place.until(lambda: [one.restarts for one in seen(place)] == [1], "a replaced child")
    worker.stop()
    assert seen(place) == []


def test_who_stops_slowly_says_so_and_who_is_killed_is_gone_at_once(place: Site) -> None:
    worker, other = place.start(), place.start(name="two")
    go = place.path / "go"
    place.started(*(place.send("until_file", str(go)) for _ in range(4)))
    other.process.terminate()
    place.until(lambda: sorted(status(place)) == ["stopping", "working"], "one of two to stop")
    worker.kill()
    assert [one.name for one in seen(place)] == ["two@test"]
    go.touch()
    other.wait()
    assert seen(place) == []


def test_a_worker_that_rests_for_longer_than_its_lease_is_seen(place: Site) -> None:
    place.settings["worker_lease_seconds"] = 1.0
    worker = place.start()
    (first,) = seen(place)
    place.until(lambda: seen(place)[0].seen > first.seen + 5.0, "five leases to pass")
    assert command(place)[0]["name"] == "one@test"
    worker.stop()


def test_what_two_workers_run_is_shown_and_goes_with_the_one_that_is_killed(place: Site) -> None:
    worker, other = place.start(), place.start(name="two")
    go = place.path / "go"
    ids = [place.send("until_file", str(go)) for _ in range(6)]
    place.until(lambda: [one.busy for one in seen(place)] == [2, 2], "both to say that they are busy")
    children = {*worker.wait_pool(2), *other.wait_pool(2)}
    shown = command(place)
    assert {run["pid"] for one in shown for run in one["running"]} == children
    assert all(one["memory"] > 0 < min(one["pool_memory"]) for one in shown)
    tasks = place.client.peek()
    assert {task.pid for task in tasks if task.state == "running"} == children
    assert {(task.args, task.queue) for task in tasks} == {(repr((str(go),)), "celery")}
    assert {task.id for task in tasks} == set(ids)
    other.kill()
    assert [one.name for one in seen(place)] == ["one@test"]
    left = command(place, "tasks")
    assert {task["id"] for task in left} == set(ids)
    assert {task["pid"] for task in left if task["state"] == "running"} == {*worker.wait_pool(2)}
    go.touch()
    place.until(lambda: place.client.peek() == [], "all to end")
    worker.stop()


def command(site: Site, name: str = "workers") -> Any:
    """What ``qworker workers``, or another command, says."""
    done = subprocess.run(
        [sys.executable, "-m", "qworker", name, "-A", "tests.acceptance.fault_tasks:app", "--json"],
        cwd=site.path,
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)
