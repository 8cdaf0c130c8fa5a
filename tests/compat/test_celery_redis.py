"""Celery on Redis: its calls run on our worker, ours on its worker, and both share a queue."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")
redis = pytest.importorskip("redis", reason="the test extra installs it")

from qworker import QWorker  # noqa: E402
from tests.compat.fleet import ALONE, PATIENCE, Fleet  # noqa: E402
from tests.servers import prefix_of, require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402

pytestmark = BESIDE_CELERY

TASKS = """
@app.task(name="proj.add", bind=True)
def add(self, x, y=0):
    info = dict(self.request.delivery_info)
    note(task="add", id=self.request.id, sum=x + y, priority=info.get("priority"),
    redelivered=info.get("redelivered"))

@app.task(name="proj.again", bind=True, max_retries=2)
def again(self):
    note(task="again", retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)

@app.task(name="proj.nap")
def nap(seconds):
    note(task="nap")
    time.sleep(seconds)

@app.task(name="proj.until_file")
def until_file(path):
    note(task="until_file")
    while not os.path.exists(path):
        time.sleep(0.01)

@app.task(name="proj.slow", bind=True, acks_late=True)
def slow(self, seconds, on):
    note(task="slow", redelivered=self.request.delivery_info.get("redelivered"))
    if BY == on:
        time.sleep(seconds)
    note(task="slow done")
"""
CELERY_APP = """
from celery import Celery
BY = "celery"
app = Celery("proj", broker={url!r}, backend="disabled://")
app.conf.update(worker_prefetch_multiplier=1, task_acks_late=True, broker_transport_options={options!r})
"""
QWORKER_APP = """
from qworker import QWorker
BY = "qworker"
app = QWorker("proj", broker={url!r}, broker_transport_options={options!r}, worker_lease_seconds={lease!r})
"""


class Project(Fleet):
    """A directory with the same tasks for Celery and for qworker, a shared key prefix, and a ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.url = require("redis")
        self.client = redis.Redis.from_url(self.url)
        self.prefix = prefix_of(path)
        self.options: dict[str, Any] = {"global_keyprefix": self.prefix}
        self._apps: list[Any] = []

    def theirs(self, **settings: Any) -> Any:
        """A Celery app that publishes."""
        app = celery.Celery("proj", broker=self.url, set_as_current=False, changes=settings)
        app.conf.broker_transport_options = self.options
        self._apps.append(app)
        return app

    def ours(self, **options: Any) -> QWorker:
        app = QWorker(
            "proj",
            broker=self.url,
            set_as_current=False,
            broker_transport_options={**self.options, **options},
        )
        self._apps.append(app)
        return app

    def our_worker(self, lease: float = 15.0, **options: Any) -> subprocess.Popen[bytes]:
        options = {**self.options, **options}
        self.write(TASKS, our_app=QWORKER_APP.format(url=self.url, options=options, lease=lease))
        return super().our_worker()

    def their_worker(self, **options: Any) -> subprocess.Popen[bytes]:
        options = {**self.options, **options}
        self.write(TASKS, their_app=CELERY_APP.format(url=self.url, options=options))
        return super().their_worker(*ALONE)

    def empty(self) -> bool:
        """Whether no message is left in any state."""
        keys = self.client.scan_iter(f"{self.prefix}*", count=10_000)
        return not any(self.client.type(key) == b"list" or key.endswith(b"unacked") for key in keys)

    def end(self) -> None:
        for app in self._apps:
            app.close()
        self.kill()
        self.client.close()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.end()


def test_our_worker_runs_celery_calls(project: Project) -> None:
    theirs, protocol1 = project.theirs(), project.theirs(task_protocol=1)
    sent = {
        theirs.send_task("proj.add", (1,), {"y": 2}).id: 3,
        theirs.send_task("proj.add", (2,), priority=5).id: 2,
        theirs.send_task(
            "proj.add", (10,), exchange="celery", routing_key="celery", compression="gzip"
        ).id: 10,
        protocol1.send_task("proj.add", (100,)).id: 100,
    }
    theirs.send_task("proj.again")
    worker = project.our_worker()
    project.until(lambda: len(project.ledger("add")) == 4 and len(project.ledger("again")) == 3)
    assert {entry["id"]: entry["sum"] for entry in project.ledger("add")} == sent
    assert [entry["retries"] for entry in project.ledger("again")] == [0, 1, 2]
    project.until(project.empty)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_idle_worker_is_woken_by_celery_calls(project: Project) -> None:
    worker = project.our_worker()
    theirs = project.theirs()
    theirs.send_task("proj.add", (0,))
    project.until(lambda: project.ledger("add"))
    delays = []
    for number in range(10):
        before = time.time()
        theirs.send_task("proj.add", (number,), priority=0 if number % 2 else 6)
        project.until(lambda number=number: len(project.ledger("add")) == number + 2)
        delays.append(project.ledger("add")[-1]["at"] - before)
    assert sorted(delays)[5] < 0.5
    assert worker.poll() is None


def test_our_worker_respects_celery_etas(project: Project) -> None:
    project.our_worker()
    before = time.time()
    project.theirs().send_task("proj.add", (1,), countdown=1.5)
    project.until(lambda: project.ledger("add"))
    assert project.ledger("add")[0]["at"] >= before + 1.5


def test_celery_worker_runs_our_calls(project: Project) -> None:
    ours = project.ours()
    sent = {ours.send_task("proj.add", (number,), {"y": 1}).id: number + 1 for number in range(5)}
    sent[ours.send_task("proj.add", (50,), priority=9).id] = 50
    many = ours.send_many([("proj.add", (number,), {}) for number in range(100, 150)])
    sent |= {result.id: number for result, number in zip(many, range(100, 150), strict=True)}
    ours.send_task("proj.again")
    project.their_worker()
    project.until(lambda: len(project.ledger("add")) == 56 and len(project.ledger("again")) == 3)
    assert {entry["id"]: entry["sum"] for entry in project.ledger("add")} == sent
    assert project.ledger("add")[0]["sum"] == 50, "ours of priority 9 is its most urgent"
    project.until(project.empty)


def test_flushed_delayed_messages_run_on_celery(project: Project) -> None:
    ours = project.ours()
    due = time.time() + 1.0
    ours.send_task("proj.add", (7,), countdown=1.0)
    assert ours.broker.admin.flush_delayed("celery") == 1
    project.their_worker()
    project.until(lambda: project.ledger("add"))
    assert project.ledger("add")[0]["at"] >= due - 0.01


def test_both_workers_share_a_queue(project: Project) -> None:
    our, their = project.our_worker(), project.their_worker()
    ours, theirs = project.ours(), project.theirs()
    project.until(lambda: ours.broker.admin.workers())
    project.until(lambda: theirs.control.ping(["theirs@test"], timeout=0.5))
    ids: list[str] = []

    def both_have_run_some() -> bool:
        """The faster worker takes most, so more is sent until the slower one has had some."""
        for number in range(150):
            ids.append(ours.send_task("proj.add", (number,)).id)
            ids.append(theirs.send_task("proj.add", (number,)).id)
            if number % 10 == 0:
                ours.send_task("proj.nap", (0.05,))
        return {entry["by"] for entry in project.ledger()} == {"qworker", "celery"}

    project.until(both_have_run_some)
    project.until(lambda: len(project.ledger("add")) >= len(ids) and project.empty())
    assert Counter(entry["id"] for entry in project.ledger("add")) == Counter(ids)
    assert our.poll() is None
    assert their.poll() is None


def test_celery_restores_messages_of_our_dead_worker(project: Project) -> None:
    """No worker of ours is left: only the visibility timeout restores the message."""
    ours = project.ours()
    worker = project.our_worker(lease=2.0)
    ours.send_task("proj.slow", (600, "qworker"))
    project.until(lambda: project.ledger("slow"))
    project.kill(worker)
    project.their_worker(visibility_timeout=1, unacked_restore_interval=1, unacked_restore_throttle=1)
    project.until(lambda: project.ledger("slow done"))
    assert project.ledger("slow")[-1]["by"] == "celery"
    assert project.ledger("slow")[-1]["redelivered"] is True
    project.until(project.empty)


def test_our_worker_restores_messages_of_a_dead_celery_worker(project: Project) -> None:
    worker = project.their_worker()
    project.theirs().send_task("proj.slow", (600, "celery"))
    project.until(lambda: project.ledger("slow"))
    project.kill(worker)
    project.our_worker(visibility_timeout=1)
    project.until(lambda: project.ledger("slow done"))
    assert project.ledger("slow")[-1] | {"by": "qworker", "redelivered": True} == project.ledger("slow")[-1]
    project.until(project.empty)


def test_long_task_on_our_worker_outlives_celerys_visibility_timeout(project: Project) -> None:
    go = project.path / "go"
    project.our_worker(lease=3.0)
    project.ours().send_task("proj.until_file", (str(go),))
    project.until(lambda: project.ledger("until_file"))
    project.their_worker(visibility_timeout=1, unacked_restore_interval=1, unacked_restore_throttle=1)
    theirs = project.theirs()
    project.until(lambda: theirs.control.ping(["theirs@test"], timeout=0.5))
    time.sleep(4)  # long enough for Celery's worker to restore the task several times
    go.touch()
    project.until(project.empty)
    assert [entry["by"] for entry in project.ledger("until_file")] == ["qworker"]


def test_priority_scale_of_celery(project: Project) -> None:
    ours = project.ours(priority_scale="celery")
    for priority in (9, None, 3, 6):
        ours.send_task("proj.add", (priority or 0,), **({} if priority is None else {"priority": priority}))
    assert project.client.llen(f"{project.prefix}celery") == 1
    for step in (3, 6, 9):
        assert project.client.llen(f"{project.prefix}celery\x06\x16{step}") == 1
    project.their_worker()
    project.until(lambda: len(project.ledger("add")) == 4)
    assert [entry["sum"] for entry in project.ledger("add")] == [0, 3, 6, 9]
