"""Workflows whose calls run partly on a Celery worker and partly on ours, sent by either library: on
Redis, and on RabbitMQ with results in Redis."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

celery = pytest.importorskip("celery", reason="the test extra installs it")
pytest.importorskip("redis", reason="the test extra installs it")

from celery import canvas as celery_canvas  # noqa: E402

from qworker import QWorker, canvas  # noqa: E402
from tests.compat.fleet import ALONE, PATIENCE, Fleet  # noqa: E402
from tests.servers import new_prefix, require  # noqa: E402
from tests.support.beside_celery import BESIDE_CELERY  # noqa: E402
from tests.support.rabbitmq import forget_queues  # noqa: E402

pytestmark = BESIDE_CELERY

TASKS = """
def noted(task, value):
    note(task=task.name, id=task.request.id, root=task.request.root_id, parent=task.request.parent_id,
         value=value)
    return value

@app.task(name="add", bind=True)
def add(self, x, y):
    return noted(self, x + y)

@app.task(name="total", bind=True)
def total(self, values):
    return noted(self, sum(values))

@app.task(name="listed", bind=True)
def listed(self, values):
    return noted(self, values)

@app.task(name="fail", bind=True)
def fail(self, *given):
    noted(self, None)
    raise ValueError("no")

@app.task(name="again", bind=True, max_retries=1)
def again(self, x):
    if not self.request.retries:
        raise self.retry(countdown=0.01)
    return noted(self, x)

@app.task(name="told", bind=True)
def told(self, failed):
    noted(self, failed)
"""
CELERY_APP = """
from celery import Celery
BY = "celery"
app = Celery("flow", broker={url!r}, backend={results!r})
app.conf.update(worker_prefetch_multiplier=1, task_acks_late=True, **{settings!r})
"""
QWORKER_APP = """
from qworker import QWorker
BY = "qworker"
app = QWorker("flow", broker={url!r}, backend={results!r}, **{settings!r})
"""


class Mixed(Fleet):
    """A broker with a queue for Celery's worker and one for ours, and one result backend."""

    def __init__(self, path: Path, broker: str) -> None:
        super().__init__(path)
        self.broker = broker
        self.url, self.results = require(broker), require("redis")
        self.name = f"flow{uuid.uuid4().hex[:10]}"
        self.theirs, self.ours = f"{self.name}.theirs", f"{self.name}.ours"
        keys = {"global_keyprefix": new_prefix()}
        settings: dict[str, Any] = {"result_backend_transport_options": keys, "task_default_queue": self.ours}
        if broker == "redis":
            settings["broker_transport_options"] = keys
        values = {"url": self.url, "results": self.results, "settings": settings}
        self.write(TASKS, their_app=CELERY_APP.format(**values), our_app=QWORKER_APP.format(**values))
        their_app = celery.Celery("flow", broker=self.url, backend=self.results, set_as_current=False)
        their_app.conf.update(settings)
        self.our_app = QWorker(
            "flow", broker=self.url, backend=self.results, set_as_current=False, **settings
        )
        self.senders = {
            "sent by Celery": self._sender(their_app, celery_canvas),
            "sent by qworker": self._sender(self.our_app, canvas),
        }

    def _sender(self, app: Any, kinds: Any) -> SimpleNamespace:
        """The names of a library; ``they`` has the tasks for Celery's worker, ``we`` those for ours."""

        def at(queue: str) -> SimpleNamespace:
            def task(name: str) -> Callable[..., Any]:
                return lambda *args: app.signature(name, args).set(queue=queue)

            names = ("add", "total", "listed", "fail", "again", "told")
            return SimpleNamespace(**{name: task(name) for name in names})

        return SimpleNamespace(
            app=app,
            chain=kinds.chain,
            group=kinds.group,
            chord=kinds.chord,
            they=at(self.theirs),
            we=at(self.ours),
        )

    def our_worker(self) -> subprocess.Popen[bytes]:
        return super().our_worker("-c", "2", "-Q", self.ours)

    def their_worker(self) -> subprocess.Popen[bytes]:
        return super().their_worker(*ALONE, "-Q", self.theirs, name=self.name)

    def value(self, task_id: str) -> Any:
        """The value or exception of a call."""
        result: Any = self.our_app.AsyncResult(task_id)
        self.until(result.ready)
        return result.get(timeout=PATIENCE, propagate=False)

    def ran(self, root: str) -> list[tuple[str, str]]:
        """``(task, by)`` of the runs of a workflow, in order."""
        return [(entry["task"], entry["by"]) for entry in self.ledger() if entry["root"] == root]

    def end(self) -> None:
        self.kill()
        for sender in self.senders.values():
            sender.app.close()
        if self.broker == "rabbitmq":
            forget_queues(self.url, self.theirs, self.ours)


@pytest.fixture(params=["redis", "rabbitmq"], scope="module")
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    fleet = Mixed(tmp_path_factory.mktemp("mixed"), request.param)
    fleet.their_worker()
    fleet.our_worker()
    yield fleet
    fleet.end()


SUCCEEDS: dict[str, tuple[Callable[[Any, Any, Any], Any], Any]] = {
    "a chain that alternates": (
        lambda n, a, b: n.chain(a.add(1, 1), b.add(10), a.add(100), b.add(1000), a.again()),
        1112,
    ),
    "header there, body here": (lambda n, a, b: n.chord([a.add(i, i) for i in range(5)], b.total()), 20),
    "a header on both": (
        lambda n, a, b: n.chord(
            [*(a.add(i, i) for i in range(4)), *(b.add(i, i) for i in range(4))], a.total()
        ),
        24,
    ),
    "a header of chains that alternate": (
        lambda n, a, b: n.chord([a.add(1, 1) | b.add(10), b.add(2, 2) | a.add(20)], b.listed()),
        [12, 24],
    ),
    "a chord in a chain": (
        lambda n, a, b: n.chain(a.add(1, 1), n.group(b.add(1), a.add(2)), b.total(), a.add(100), b.add(1000)),
        1107,
    ),
    "a chord after a chord": (
        lambda n, a, b: n.chain(
            n.group(a.add(1, 1), b.add(2, 2)), b.total(), n.group(a.add(10), b.add(20)), a.listed()
        ),
        [16, 26],
    ),
    "a chord of chords": (
        lambda n, a, b: n.chord(
            [n.chord([a.add(1, 1), b.add(2, 2)], b.total()), n.chord([b.add(3, 3), a.add(4, 4)], a.total())],
            b.listed(),
        ),
        [6, 14],
    ),
    "a member that is tried again": (lambda n, a, b: n.chord([a.again(3), b.again(4)], b.total()), 7),
    "a body that is a chain": (
        lambda n, a, b: n.chord([a.add(1, 1), b.add(2, 2)], b.total() | a.add(10) | b.add(100)),
        116,
    ),
    "a body that is a group": (
        lambda n, a, b: n.chord([a.add(1, 1), b.add(2, 2)], n.group(a.total(), b.listed())),
        [6, [2, 4]],
    ),
    "a group at the end": (
        lambda n, a, b: n.chain(a.add(1, 1), b.add(1), n.group(a.add(10), b.add(20))),
        [13, 23],
    ),
}


def sides(n: Any, turned: bool) -> tuple[Any, Any]:
    return (n.we, n.they) if turned else (n.they, n.we)


@pytest.mark.parametrize("turned", [False, True], ids=["as named", "the other way round"])
@pytest.mark.parametrize("sender", ["sent by Celery", "sent by qworker"])
@pytest.mark.parametrize("name", SUCCEEDS)
def test_workflow_runs_on_both(mixed: Mixed, name: str, sender: str, turned: bool) -> None:
    n = mixed.senders[sender]
    build, expected = SUCCEEDS[name]
    call = build(n, *sides(n, turned))
    result = call.apply_async()
    single = getattr(result, "results", None)
    value = [mixed.value(each.id) for each in single] if single else mixed.value(result.id)
    assert value == expected
    entries = [entry for entry in mixed.ledger() if entry["id"] in ids(result)]
    assert len({entry["id"] for entry in entries}) == len(entries), "each runs once"


def ids(result: Any) -> set[str]:
    """The ids of all calls that *result* refers to."""
    found, waiting = set(), [result]
    while waiting:
        each = waiting.pop()
        found.add(each.id)
        waiting += getattr(each, "results", None) or []
        if each.parent is not None:
            waiting.append(each.parent)
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["there", "here"])
@pytest.mark.parametrize("sender", ["sent by Celery", "sent by qworker"])
def test_failed_member_fails_the_body_on_the_other_worker_once(
    mixed: Mixed, sender: str, turned: bool
) -> None:
    n = mixed.senders[sender]
    a, b = sides(n, turned)
    mark = uuid.uuid4().hex
    body = b.total()
    body.link_error(marking(b, mark))
    # Celery's worker does not call errbacks of a body that Celery's producer has written as a chain.
    flow = body | a.add(1) if sender == "sent by qworker" else body
    result = n.chord([a.add(1, 1), a.fail(), b.add(2, 2)], flow).apply_async()
    assert type(mixed.value(result.id)).__name__ == "ChordError"
    mixed.until(lambda: recorded(mixed, mark))
    after = n.chord([a.add(1, 1), b.add(2, 2)], b.total()).apply_async()
    assert mixed.value(after.id) == 6
    assert recorded(mixed, mark) == [mark]
    assert {entry["task"] for entry in mixed.ledger() if entry["id"] in ids(result)} <= {"add", "fail"}
    assert not [entry for entry in mixed.ledger() if entry["id"] == result.id]


def marking(at: Any, mark: str) -> Any:
    """An errback that records *mark*."""
    errback = at.told(mark)
    errback.set_immutable(True)
    return errback


def recorded(mixed: Mixed, mark: str) -> list[Any]:
    return [entry["value"] for entry in mixed.ledger("told") if entry["value"] == mark]


@pytest.mark.parametrize("turned", [False, True], ids=["there", "here"])
@pytest.mark.parametrize("sender", ["sent by Celery", "sent by qworker"])
def test_failed_step_ends_the_chain_on_both(mixed: Mixed, sender: str, turned: bool) -> None:
    n = mixed.senders[sender]
    a, b = sides(n, turned)
    mark = uuid.uuid4().hex
    fails = a.fail()
    fails.link_error(marking(b, mark))
    result = n.chain(b.add(1, 1), fails, b.add(1), a.add(2)).apply_async()
    assert type(mixed.value(result.id)).__name__ == "ValueError"
    assert type(mixed.value(result.parent.parent.id)).__name__ == "ValueError"
    mixed.until(lambda: recorded(mixed, mark))
    ran = [entry["task"] for entry in mixed.ledger() if entry["id"] in ids(result)]
    assert ran == ["add", "fail"]


@pytest.mark.parametrize("sender", ["sent by Celery", "sent by qworker"])
def test_root_and_parent_ids_are_kept_across_both(mixed: Mixed, sender: str) -> None:
    n = mixed.senders[sender]
    they, we = n.they, n.we
    result = n.chain(
        they.add(1, 1), we.add(1), n.group(they.add(1), we.add(2)), we.total(), they.add(1)
    ).apply_async()
    assert mixed.value(result.id) == 10
    entries = {entry["id"]: entry for entry in mixed.ledger()}
    body, header = result.parent, result.parent.parent
    second, first = header.parent, header.parent.parent
    assert {entries[each]["root"] for each in ids(result) - {header.id}} == {first.id}
    assert entries[first.id]["parent"] is None
    assert entries[second.id]["parent"] == first.id
    assert {entries[each.id]["parent"] for each in header.results} == {second.id}
    assert entries[body.id]["parent"] in {each.id for each in header.results}
    assert entries[result.id]["parent"] == body.id


def test_graph_command_shows_calls_that_celery_ran(mixed: Mixed) -> None:
    """All run by Celery, asked for by the id of the first call and of the last."""
    n = mixed.senders["sent by Celery"]
    chain = n.chain(n.they.add(1, 1), n.they.add(10), n.they.add(100)).apply_async()
    chord = n.chord([n.they.add(1, 1), n.they.add(2, 2)], n.they.total()).apply_async()
    assert [mixed.value(each.id) for each in (chain, chord)] == [112, 6]
    calls = [chain.parent.parent.id, chain.parent.id, chain.id]
    assert graphed(mixed, calls[0]) == graphed(mixed, calls[2]) == (calls, [])
    steps, unknown = graphed(mixed, chord.id)
    assert steps[-1] == chord.id
    assert steps[0] in ids(chord)
    # Celery does not store groups unless they are saved.
    assert [chord.parent.id in line for line in unknown] == [True]


def graphed(mixed: Mixed, identity: str) -> tuple[list[str], list[str]]:
    """The ids of the calls that ``qworker graph`` shows for *identity*, in order, all successful; and what
    it reports as unknown."""
    shown = subprocess.run(
        [sys.executable, "-m", "qworker", "graph", "-A", "our_app:app", "--json", identity],
        cwd=mixed.path, env={**os.environ, "PYTHONPATH": str(mixed.path)}, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stdout + shown.stderr
    recorded = json.loads(shown.stdout)
    return [step["id"] for step in recorded["steps"]], recorded["unknown"]


@pytest.mark.parametrize("first", ["their_worker", "our_worker"])
def test_workers_started_one_after_the_other(tmp_path: Path, first: str) -> None:
    """The first worker does its part before the other one starts."""
    fleet = Mixed(tmp_path, "redis")
    try:
        expected, results = [], []
        for n in fleet.senders.values():
            for turned in (False, True):
                for name in ("header there, body here", "a header on both", "a chord of chords"):
                    build, value = SUCCEEDS[name]
                    results.append(build(n, *sides(n, turned)).apply_async())
                    expected.append(value)
        other = {"their_worker": "our_worker", "our_worker": "their_worker"}[first]
        getattr(fleet, first)()
        queue = {"their_worker": fleet.theirs, "our_worker": fleet.ours}[first]
        fleet.until(lambda: fleet.ledger() and not waiting(fleet, queue))
        getattr(fleet, other)()
        assert [fleet.value(each.id) for each in results] == expected
    finally:
        fleet.end()


def waiting(fleet: Mixed, queue: str) -> int:
    """The number of messages in *queue*."""
    return sum(info.ready + info.leased for info in fleet.our_app.broker.admin.depths([queue]))
