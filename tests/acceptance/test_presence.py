"""The presence of a real worker, as seen from another process: working, idle, stopping and dead."""

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
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
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


def test_status_of_a_worker_is_working_idle_or_absent(site: Site) -> None:
    worker = site.start("-Q", "celery,mail")
    site.until(lambda: status(site) == ["idle"], "an idle worker")
    go = site.path / "go"
    id = site.send("until_file", str(go))
    site.until(lambda: status(site) == ["working"], "a worker at work")
    (found,) = seen(site)
    assert (found.name, found.pid, found.queues, found.concurrency) == (
        "one@test", worker.pid, ("celery", "mail"), 2,
    )  # fmt: skip
    assert sorted(found.pool) == sorted(worker.wait_pool(2))
    (task,) = found.running
    assert (task.id, task.name, task.queue, found.busy) == (id, "until_file", "celery", 1)
    assert task.pid in found.pool
    assert found.started <= task.started <= found.seen
    go.touch()
    site.until(lambda: status(site) == ["idle"], "it to rest again")
    assert (seen(site)[0].busy, seen(site)[0].totals["finished"]) == (0, 1)
    kill(worker.wait_pool(2)[0])
    site.until(lambda: [one.restarts for one in seen(site)] == [1], "a replaced child")
    worker.stop()
    assert seen(site) == []


def test_stopping_worker_is_shown_and_killed_worker_disappears(site: Site) -> None:
    worker, other = site.start(), site.start(name="two")
    go = site.path / "go"
    site.started(*(site.send("until_file", str(go)) for _ in range(4)))
    other.process.terminate()
    site.until(lambda: sorted(status(site)) == ["stopping", "working"], "one of two to stop")
    worker.kill()
    assert [one.name for one in seen(site)] == ["two@test"]
    go.touch()
    other.wait()
    assert seen(site) == []


def test_worker_idle_for_longer_than_its_lease_is_shown(site: Site) -> None:
    site.settings["worker_lease_seconds"] = 1.0
    worker = site.start()
    (first,) = seen(site)
    site.until(lambda: seen(site)[0].seen > first.seen + 5.0, "five leases to pass")
    assert command(site)[0]["name"] == "one@test"
    worker.stop()


def test_running_tasks_of_two_workers_are_shown(site: Site) -> None:
    worker, other = site.start(), site.start(name="two")
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(6)]
    site.until(lambda: [one.busy for one in seen(site)] == [2, 2], "both to say that they are busy")
    children = {*worker.wait_pool(2), *other.wait_pool(2)}
    shown = command(site)
    assert {run["pid"] for one in shown for run in one["running"]} == children
    assert all(one["memory"] > 0 < min(one["pool_memory"]) for one in shown)
    tasks = site.client.peek()
    assert {task.pid for task in tasks if task.state == "running"} == children
    assert {(task.args, task.queue) for task in tasks} == {(repr((str(go),)), "celery")}
    assert {task.id for task in tasks} == set(ids)
    other.kill()
    assert [one.name for one in seen(site)] == ["one@test"]
    left = command(site, "tasks")
    assert {task["id"] for task in left} == set(ids)
    assert {task["pid"] for task in left if task["state"] == "running"} == {*worker.wait_pool(2)}
    go.touch()
    site.until(lambda: site.client.peek() == [], "all to end")
    worker.stop()


def command(site: Site, name: str = "workers") -> Any:
    """The JSON output of ``qworker workers`` or another command."""
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
