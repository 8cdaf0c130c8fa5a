"""Celery on RabbitMQ: its calls run on our worker, ours on its worker, and both share a queue."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")

from qworker import QWorker  # noqa: E402
from tests.compat.fleet import ALONE, Fleet  # noqa: E402
from tests.servers import require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402
from tests.support.rabbitmq import forget_queues  # noqa: E402

pytestmark = BESIDE_CELERY

TASKS = """
@app.task(name="proj.add", bind=True)
def add(self, x, y=0):
    note(task="add", id=self.request.id, sum=x + y, mine=(self.request.headers or {}).get("mine"))

@app.task(name="proj.again", bind=True, max_retries=2)
def again(self):
    note(task="again", id=self.request.id, retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)

@app.task(name="proj.slow", bind=True, acks_late=True)
def slow(self):
    note(task="slow", redelivered=self.request.delivery_info.get("redelivered"))
    if BY == "celery":
        time.sleep(600)
    note(task="slow done")
"""
CELERY_APP = """
from celery import Celery
BY = "celery"
app = Celery("proj", broker="{url}", backend="disabled://")
app.conf.update(task_default_queue="{queue}", worker_prefetch_multiplier=1, task_acks_late=True)
"""
QWORKER_APP = """
from qworker import QWorker
BY = "qworker"
app = QWorker("proj", broker_url="{url}", task_default_queue="{queue}", result_backend="disabled://")
"""


class Project(Fleet):
    """A directory with the same tasks for Celery and for qworker, a shared queue, and a ledger."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.url = require("rabbitmq")
        self.queue = f"compat-{uuid.uuid4().hex[:10]}"
        values = {"url": self.url, "queue": self.queue}
        self.write(TASKS, their_app=CELERY_APP.format(**values), our_app=QWORKER_APP.format(**values))
        self.theirs = celery.Celery("proj", broker=self.url, backend="disabled://", set_as_current=False)
        self.theirs.conf.task_default_queue = self.queue
        self.ours = QWorker("proj", broker_url=self.url, task_default_queue=self.queue)

    def their_worker(self) -> subprocess.Popen[bytes]:
        return super().their_worker(*ALONE, name=self.queue)

    def close(self) -> None:
        self.kill()
        self.theirs.close()
        self.ours.broker.close()
        forget_queues(self.url, self.queue)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


def test_our_worker_runs_celery_calls(project: Project) -> None:
    start = time.time()
    later = project.theirs.send_task("proj.add", (10, 1), countdown=1.5)
    plain = project.theirs.send_task("proj.add", (1,), {"y": 2}, priority=3)
    again = project.theirs.send_task("proj.again")
    project.our_worker()
    project.until(lambda: len(project.ledger("again")) == 3)
    assert [(entry["id"], entry["retries"]) for entry in project.ledger("again")] == [
        (again.id, 0), (again.id, 1), (again.id, 2),
    ]  # fmt: skip
    project.until(lambda: len(project.ledger("add")) == 2)
    first, second = sorted(project.ledger("add"), key=lambda entry: entry["sum"])
    assert (first["id"], first["sum"]) == (plain.id, 3)
    assert (second["id"], second["sum"]) == (later.id, 11)
    assert start + 1.5 <= second["at"] < start + 15


def test_celery_worker_runs_our_calls(project: Project) -> None:
    start = time.time()
    later = project.ours.send_task("proj.add", (10, 1), countdown=1.5)
    plain = project.ours.send_task("proj.add", (1,), {"y": 2}, priority=3, headers={"mine": [1, None]})
    project.ours.send_task("proj.again")
    project.their_worker()
    project.until(lambda: len(project.ledger("again")) == 3 and len(project.ledger("add")) == 2)
    first, second = sorted(project.ledger("add"), key=lambda entry: entry["sum"])
    assert (first["id"], first["mine"]) == (plain.id, [1, None])
    assert second["id"] == later.id
    assert start + 1.5 <= second["at"]


def test_mixed_fleet_runs_each_call_once(project: Project) -> None:
    project.our_worker()
    project.their_worker()
    project.until(lambda: "ready;" in project.logs() and "@test ready." in project.logs())
    sent = []
    for number in range(150):
        sent.append(project.theirs.send_task("proj.add", (number,)).id)
        sent.append(project.ours.send_task("proj.add", (number,)).id)
    project.until(lambda: len(project.ledger("add")) >= len(sent))
    time.sleep(0.2)
    entries = project.ledger("add")
    assert Counter(entry["id"] for entry in entries) == dict.fromkeys(sent, 1)
    assert {entry["by"] for entry in entries} == {"celery", "qworker"}


def test_our_worker_runs_the_task_of_a_killed_celery_worker(project: Project) -> None:
    project.theirs.send_task("proj.slow")
    theirs = project.their_worker()
    project.until(lambda: project.ledger("slow"))
    os.killpg(theirs.pid, signal.SIGKILL)
    project.our_worker()
    project.until(lambda: project.ledger("slow done"))
    assert [(entry["by"], entry["redelivered"]) for entry in project.ledger("slow")] == [
        ("celery", False), ("qworker", True),
    ]  # fmt: skip
