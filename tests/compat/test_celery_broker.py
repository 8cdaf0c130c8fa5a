"""Celery on the embedded broker: its calls run on our worker, ours on its worker, and both share a queue."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from qworker import QWorker  # noqa: E402
from qworker.transports import register  # noqa: E402
from tests.compat.fleet import PATIENCE, Fleet  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402

pytestmark = BESIDE_CELERY

TASKS = """
@app.task(name="proj.add", bind=True)
def add(self, x, y=0):
    request = self.request
    note(task="add", id=request.id, sum=x + y, retries=request.retries, info=dict(request.delivery_info))
    return x + y

@app.task(name="proj.again", bind=True, max_retries=2, default_retry_delay=0.01)
def again(self):
    note(task="again", retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)

@app.task(name="proj.slow", bind=True, acks_late=True, reject_on_worker_lost=True)
def slow(self, seconds):
    note(task="slow", redelivered=self.request.delivery_info.get("redelivered"))
    if BY == SLOW_ON:
        time.sleep(seconds)
    note(task="slow done")
"""
CELERY_APP = """
from celery import Celery
from qworker.transports import register
register()
BY, SLOW_ON = "celery", "celery"
app = Celery("proj", broker="{url}", backend="disabled://")
app.conf.update(worker_prefetch_multiplier=1, task_acks_late=True, worker_send_task_events=True)
"""
QWORKER_APP = """
from qworker import QWorker
BY, SLOW_ON = "qworker", "celery"
app = QWorker("proj", broker="{url}")
"""


class Project(Fleet):
    """A directory with the same tasks for Celery and for qworker, a shared database file, and a ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.url = f"sqlite:///{path}/queue.db"
        self.write(TASKS, their_app=CELERY_APP.format(url=self.url), our_app=QWORKER_APP.format(url=self.url))

    def get(self, ours: QWorker, sent: Any) -> Any:
        """The result of a call that our worker runs."""
        result = ours.AsyncResult(sent.id)
        self.until(result.ready)
        return result.get(timeout=0)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    register()
    project = Project(tmp_path)
    yield project
    project.kill()


@pytest.fixture
def theirs(project: Project) -> Iterator[Any]:
    """A Celery app that publishes through our transport."""
    app = celery.Celery("proj", broker=project.url, set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def protocol1(project: Project) -> Iterator[Any]:
    """A Celery app that sends messages of protocol 1."""
    app = celery.Celery("proj", broker=project.url, set_as_current=False, changes={"task_protocol": 1})
    yield app
    app.close()


@pytest.fixture
def ours(project: Project) -> Iterator[QWorker]:
    app = QWorker("proj", broker=project.url, set_as_current=False)
    yield app
    app.close()


def test_our_worker_runs_celery_calls(project: Project, theirs: Any, protocol1: Any, ours: QWorker) -> None:
    urgent = theirs.send_task("proj.add", (1,), {"y": 2}, priority=9)
    through = theirs.send_task("proj.add", (10,), exchange="celery", routing_key="celery", compression="gzip")
    old = protocol1.send_task("proj.add", (100,))
    again = theirs.send_task("proj.again")
    worker = project.our_worker()
    assert project.get(ours, urgent) == 3
    assert project.get(ours, through) == 10
    assert project.get(ours, old) == 100
    project.get(ours, again)
    assert [entry["retries"] for entry in project.ledger("again")] == [0, 1, 2]
    found = {entry["id"]: entry["info"] for entry in project.ledger("add")}
    assert found[urgent.id]["priority"] == 9
    assert found[urgent.id]["redelivered"] is False
    worker.terminate()
    assert worker.wait(PATIENCE) == 0


def test_our_worker_respects_celery_etas(
    project: Project, theirs: Any, protocol1: Any, ours: QWorker
) -> None:
    project.our_worker()
    sent = time.time()
    # With protocol 1 the eta is in the body, which only a worker decodes.
    later = [app.send_task("proj.add", (1,), countdown=1.5) for app in (theirs, protocol1)]
    assert [project.get(ours, each) for each in later] == [1, 1]
    assert len(project.ledger("add")) == 2
    assert all(entry["at"] >= sent + 1.5 for entry in project.ledger("add"))


def test_celery_worker_runs_our_calls(project: Project, ours: QWorker) -> None:
    project.their_worker()
    sent = [ours.send_task("proj.add", (number,), {"y": 1}).id for number in range(20)]
    ours.send_task("proj.again")
    later, when = ours.send_task("proj.add", (99,), countdown=1).id, time.time() + 1
    project.until(lambda: len(project.ledger("add")) == 21 and len(project.ledger("again")) == 3)
    entries = {entry["id"]: entry for entry in project.ledger("add")}
    assert [entries[id]["sum"] for id in sent] == list(range(1, 21))
    assert entries[later]["at"] >= when - 0.05
    assert {entry["by"] for entry in project.ledger()} == {"celery"}
    project.until(lambda: not [info for info in ours.broker.admin.queues() if info.queue == "celery"])


@pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "2"], ["-P", "threads", "-c", "2"]])
def test_every_celery_pool_works(project: Project, theirs: Any, ours: QWorker, pool: list[str]) -> None:
    project.their_worker(*pool)
    for number in range(30):
        theirs.send_task("proj.add", (number,))
    project.until(lambda: len(project.ledger("add")) >= 30)
    assert sorted(entry["sum"] for entry in project.ledger("add")) == list(range(30))
    project.until(lambda: not [info for info in ours.broker.admin.queues() if info.queue == "celery"])


def test_tasks_of_a_killed_celery_worker_are_not_lost(project: Project, theirs: Any, ours: QWorker) -> None:
    victim = project.their_worker()
    slow = theirs.send_task("proj.slow", (600,))
    project.until(lambda: project.ledger("slow"))
    waiting = theirs.send_task("proj.add", (7,))
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    project.our_worker()
    assert project.get(ours, waiting) == 7
    project.get(ours, slow)
    assert [(entry["by"], entry["redelivered"]) for entry in project.ledger("slow")] == [
        ("celery", False),
        ("qworker", True),
    ]


def test_both_workers_share_a_queue(project: Project, theirs: Any, ours: QWorker) -> None:
    project.their_worker()
    project.our_worker()
    for number in range(200):
        (theirs if number % 2 else ours).send_task("proj.add", (number,))
    project.until(lambda: len(project.ledger("add")) >= 200)
    assert sorted(entry["sum"] for entry in project.ledger("add")) == list(range(200))


def test_celery_remote_control_and_events_work(project: Project, theirs: Any) -> None:
    project.their_worker("-P", "solo", "-E")
    who = ["theirs@test"]
    project.until(lambda: theirs.control.ping(who, timeout=0.5) == [{"theirs@test": {"ok": "pong"}}])
    assert "proj.add" in theirs.control.inspect(who, timeout=PATIENCE).registered()["theirs@test"]
    seen: list[dict[str, Any]] = []
    with theirs.connection() as connection:
        receiver = theirs.events.Receiver(connection, handlers={"*": seen.append})
        capturing = receiver.itercapture(limit=None, timeout=PATIENCE, wakeup=True)
        next(capturing)
        sent = theirs.send_task("proj.add", (1,))
        for _ in capturing:
            types = [event["type"] for event in seen if event.get("uuid") == sent.id]
            if "task-succeeded" in types:
                break
        assert types[:2] == ["task-received", "task-started"]
        capturing.close()


def test_stopped_celery_worker_leaves_no_queue(project: Project, theirs: Any, ours: QWorker) -> None:
    worker = project.their_worker()
    project.until(lambda: theirs.control.ping(["theirs@test"], timeout=0.5))
    worker.terminate()
    worker.wait(PATIENCE)
    theirs.control.broadcast("heartbeat")
    assert ours.broker.admin.queues() == []
