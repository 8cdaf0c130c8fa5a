"""Celery's workers and producers on every lease-based broker of ours, with ``qworker+`` before its URL."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")
pytest.importorskip("celery.app.builtins")  # celery.chord_unlock: an app made before has no such task

from qworker import QWorker  # noqa: E402
from tests.compat.fleet import Fleet  # noqa: E402
from tests.compat.kombu_places import PLACES, Place, each  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402

pytestmark = BESIDE_CELERY

LEASE_SECONDS = 2
TASKS = """
@app.task(name="proj.add", bind=True)
def add(self, x, y=0):
    note(task="add", id=self.request.id, sum=x + y)
    return x + y

@app.task(name="proj.total")
def total(numbers):
    note(task="total", sum=sum(numbers))
    return sum(numbers)

@app.task(name="proj.slow", bind=True, acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def slow(self, seconds):
    note(task="slow", redelivered=bool(self.request.delivery_info.get("redelivered")))
    if BY == SLOW_ON:
        time.sleep(seconds)
    note(task="slow done")

@app.task(name="proj.deadly", bind=True, acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def deadly(self):
    headers = self.request.headers or {}
    note(task="deadly", count=headers.get("x-delivery-count", 0))
    os.kill(os.getpid(), 9)

@app.task(name="proj.refused", bind=True, acks_late=True, ignore_result=True)
def refused(self):
    from celery.exceptions import Reject
    raise Reject("no", requeue=False)
"""
# Nothing is imported or registered: installing the package is enough.
CELERY_APP = """
from celery import Celery
BY, SLOW_ON = "celery", "celery"
app = Celery("proj", broker={url!r}, backend="db+sqlite:///results.db")
app.conf.update(
    broker_transport_options={options!r}, task_default_queue={queue!r}, worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)
"""
QWORKER_APP = """
from qworker import QWorker
BY, SLOW_ON = "qworker", "celery"
app = QWorker("proj", broker={url!r})
app.conf.update(
    broker_transport_options={own!r}, task_default_queue={queue!r}, worker_lease_seconds=2,
    task_ignore_result=True,
)
"""
QUEUE = "celery"


class Project(Fleet):
    """A directory with the same tasks for Celery and for qworker, a shared broker, and a ledger."""

    def __init__(self, path: Path, place: Place) -> None:
        super().__init__(path)
        self.place = place
        values = {
            "url": f"qworker+{place.url}",  # accepted by our workers and callers as well
            "options": {**place.options, "lease_seconds": LEASE_SECONDS, "max_deliveries": 3},
            "own": place.options,
            "queue": QUEUE,
        }
        self.write(TASKS, their_app=CELERY_APP.format(**values), our_app=QWORKER_APP.format(**values))
        self.theirs = celery.Celery("proj", broker=values["url"], set_as_current=False)
        self.theirs.conf.broker_transport_options = values["options"]
        self.theirs.conf.result_backend = f"db+sqlite:///{path}/results.db"
        self.theirs.conf.task_default_queue = QUEUE
        self.ours = QWorker("proj", broker=values["url"], set_as_current=False)
        self.ours.conf.update(broker_transport_options=place.options, task_default_queue=QUEUE)

    def our_worker(self) -> Any:
        return super().our_worker("-c", "1")

    def their_worker(self, *options: str, name: str = "theirs") -> Any:
        return super().their_worker(*(options or ("-c", "2")), name=name)

    def count(self, name: str) -> int:
        """The number of messages of the default queue in the state *name*: ready, delayed, leased or dead."""
        (info,) = self.ours.broker.admin.depths([QUEUE])
        return int(getattr(info, name))

    def is_empty(self) -> bool:
        return not any(self.count(name) for name in ("ready", "delayed", "leased"))

    def end(self) -> None:
        self.kill()
        self.theirs.close()
        self.ours.close()
        self.place.clear()


ALWAYS = ("sqlite", "postgresql")
"""A SQL server and the embedded broker."""


@pytest.fixture(params=each(*PLACES, always=ALWAYS))
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, PLACES[request.param](tmp_path))
    yield project
    project.end()


def test_celery_worker_runs_calls_of_both(project: Project) -> None:
    """Including delayed tasks that wait in the broker, groups, chords, and remote control where supported."""
    theirs, ours = project.theirs, project.ours
    when = time.time() + 4
    later = [app.send_task("proj.add", (100,), countdown=4).id for app in (theirs, ours)]
    if project.place.due:
        assert (project.count("delayed"), project.count("ready")) == (2, 0)
    sent = [app.send_task("proj.add", (number,)).id for number in range(20) for app in (theirs, ours)]
    project.their_worker()
    header = celery.group(theirs.signature("proj.add", (number, 1)) for number in range(5))
    whole = celery.chord(header, app=theirs)(theirs.signature("proj.total"))
    project.until(lambda: set(sent + later) <= {entry["id"] for entry in project.ledger("add")})
    entries = {entry["id"]: entry for entry in project.ledger("add")}
    assert all(entries[id]["at"] >= when - 0.1 for id in later)
    project.until(lambda: [entry["sum"] for entry in project.ledger("total")] == [15])
    project.until(whole.ready)
    if project.place.fanout:
        project.until(
            lambda: theirs.control.ping(["theirs@test"], timeout=0.5) == [{"theirs@test": {"ok": "pong"}}]
        )
    project.until(project.is_empty)
    assert len(project.ledger("add")) == len(sent) + len(later) + 5


def test_our_worker_runs_celery_calls(project: Project) -> None:
    sent = [project.theirs.send_task("proj.add", (number,), priority=number % 10).id for number in range(20)]
    sent.append(project.theirs.send_task("proj.add", (1,), countdown=1).id)
    project.our_worker()
    project.until(lambda: {entry["id"] for entry in project.ledger("add")} == set(sent))
    project.until(project.is_empty)


def test_tasks_of_a_killed_celery_worker_run_on_ours(project: Project) -> None:
    victim = project.their_worker()
    project.theirs.send_task("proj.slow", (600,))
    project.until(lambda: project.ledger("slow"))
    sent = [project.theirs.send_task("proj.add", (number,)).id for number in range(10)]
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    project.our_worker()
    project.until(lambda: project.ledger("slow done"))
    project.until(lambda: {entry["id"] for entry in project.ledger("add")} == set(sent))
    assert [(entry["by"], entry["redelivered"]) for entry in project.ledger("slow")] == [
        ("celery", False),
        ("qworker", True),
    ]


THOROUGHLY = pytest.mark.parametrize("project", ["sqlite", "postgresql"], indirect=True)
"""Slow tests of behaviour that is the same for all brokers."""


@THOROUGHLY
def test_long_task_is_not_redelivered(project: Project) -> None:
    """Longer than the lease, in a solo worker that is blocked by it, beside an idle worker."""
    project.their_worker("-P", "solo", name="busy")
    project.theirs.send_task("proj.slow", (3 * LEASE_SECONDS,))
    project.until(lambda: project.ledger("slow"))
    project.our_worker()
    project.until(lambda: project.ledger("slow done"))
    project.until(project.is_empty)
    assert [entry["by"] for entry in project.ledger("slow")] == ["celery"]


@THOROUGHLY
def test_task_that_kills_its_process_and_rejected_task_become_dead_letters(project: Project) -> None:
    project.theirs.send_task("proj.deadly")
    project.theirs.send_task("proj.refused")
    project.their_worker()
    project.until(lambda: project.count("dead") == 2)
    assert [entry["count"] for entry in project.ledger("deadly")] == [0, 1, 2]
    reasons = {dead.reason for dead in project.ours.broker.admin.dead(QUEUE)}
    assert reasons == {"delivered 3 times without success", "rejected by its consumer"}


@pytest.mark.parametrize(
    "project",
    each("sqlite", "postgresql", "redis", "mysql", "mongodb", always=ALWAYS),
    indirect=True,
)
def test_deaths_of_the_main_process_are_counted(project: Project) -> None:
    """On brokers with our own leases: the dead process cannot report its death."""
    project.theirs.send_task("proj.deadly")
    doomed = project.their_worker("-P", "solo", name="doomed")
    project.until(lambda: doomed.poll() is not None)
    project.their_worker()  # here only pool processes die
    project.until(lambda: project.count("dead") == 1)
    assert [entry["count"] for entry in project.ledger("deadly")] == [0, 1, 2]


@pytest.mark.parametrize("project", ["postgresql"], indirect=True)
def test_broker_connection_loss_loses_no_messages(project: Project) -> None:
    project.their_worker()
    sent: list[str] = []
    for _ in range(3):
        done = len(project.ledger("add"))
        sent += [project.theirs.send_task("proj.add", (number,)).id for number in range(20)]
        project.until(lambda done=done: len(project.ledger("add")) > done)
        project.place.cut()
    project.until(lambda: {entry["id"] for entry in project.ledger("add")} == set(sent))
    project.until(project.is_empty)
