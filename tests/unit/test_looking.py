"""Monitoring: workers, queues, and the state of each task, without changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qworker import QWorker
from qworker.control.looking import State, TaskSeen
from qworker.errors import NotSupported
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.transports.lease import Envelope, MessageState, Peeked


class Scene:
    """An app with a task, whose messages tests distribute over a worker and the broker."""

    def __init__(self, store: type[MemoryStore] = MemoryStore) -> None:
        self.clock = FakeClock()
        self.store = store(self.clock)
        self.app = QWorker(
            "scene", broker=self.store, backend="cache+memory://", clock=self.clock, set_as_current=False
        )

        @self.app.task(name="add")
        def add(x: int, y: int = 0) -> int:
            return x + y

        self.add: Any = add

    def seen(self, **options: Any) -> list[tuple[State, str | None]]:
        return [(task.state, task.args) for task in self.app.peek(**options)]


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.app.close()


def begin(worker: StepWorker) -> None:
    """Have the first task run, and the worker publish its presence."""
    worker.run()
    worker.pool.started.append(worker.pool.held[0])
    worker.advance(5)


def test_peek_shows_the_state_of_each_task(scene: Scene) -> None:
    began = scene.clock.now()
    with StepWorker(scene.app, on_demand=True, concurrency=1, hostname="w@h") as worker:
        ids = [scene.add.delay(number).id for number in (1, 2)]
        begin(worker)
        scene.add.apply_async((3,), {"y": 4}, priority=3)
        scene.add.apply_async((5,), countdown=60)
        first, second, third, fourth = scene.app.peek()
    assert first == TaskSeen(
        ids[0],
        "add",
        "running",
        "celery",
        "(1,)",
        "{}",
        0,
        0,
        0,
        began,
        None,
        first.started,
        "w@h",
        first.pid,
    )
    assert (first.started, second.started) == (pytest.approx(began, abs=6), None)
    assert first.pid > 0
    assert (second.id, second.state, second.worker, second.pid) == (ids[1], "reserved", "w@h", 0)
    assert (third.state, third.args, third.kwargs, third.priority) == ("waiting", "(3,)", "{'y': 4}", 3)
    assert (third.sent, third.eta, third.worker) == (began + 5, None, "")
    assert (fourth.state, fourth.eta) == ("delayed", began + 65)


def test_peek_filters_by_state_queue_and_limit(scene: Scene) -> None:
    for number in range(3):
        scene.add.delay(number)
        scene.add.apply_async((number,), queue="mail", countdown=9)
    assert scene.seen(states=["waiting"], limit=2) == [("waiting", "(0,)"), ("waiting", "(1,)")]
    assert scene.seen(names="mail", limit=1) == [("delayed", "(0,)")]
    assert scene.seen(names=["mail", "celery"], limit=1) == [("waiting", "(0,)"), ("delayed", "(0,)")]
    assert scene.seen(names=["nothing"]) == scene.seen(states=["running", "reserved"]) == []
    with pytest.raises(ValueError, match=r"no state 'runing': the states are running, reserved"):
        scene.seen(states=["runing"])


class LazyStore(MemoryStore):
    """Moves due messages only when a worker leases."""

    def peek(self, queue: str, state: MessageState, limit: int) -> list[Peeked]:
        if state == "leased":
            return []
        found = super().peek(queue, "delayed", limit) + super().peek(queue, "ready", limit)
        return [each._replace(state=state) for each in found if (each.due is None) == (state == "ready")]


def test_due_delayed_task_is_shown_as_waiting() -> None:
    scene = Scene(LazyStore)
    scene.add.apply_async((1,), countdown=9)
    assert scene.seen(states=["delayed"]) == [("delayed", "(1,)")]
    scene.clock.advance(10)
    assert scene.seen(states=["waiting"]) == [("waiting", "(1,)")]
    assert scene.seen(states=["delayed"]) == []


def test_undecodable_messages_are_shown(scene: Scene) -> None:
    scene.store.push(
        [Envelope("celery", "no headers", None, b""), Envelope("celery", '{"id": 1}', None, b"")]
    )
    assert [(task.id, task.name, task.state, task.args) for task in scene.app.peek()] == [
        ("", "", "waiting", None)
    ] * 2


def test_early_acked_task_is_shown_while_it_runs(scene: Scene) -> None:
    scene.app.conf.task_acks_late = False
    with StepWorker(scene.app, on_demand=True, concurrency=1, hostname="w@h") as worker:
        id = scene.add.delay(1).id
        begin(worker)
        assert scene.store.messages == 0
        (task,) = scene.app.peek()
        assert (task.id, task.state, task.queue, task.args, task.priority) == (
            id,
            "running",
            "celery",
            None,
            None,
        )
        assert scene.app.peek("mail") == []


def test_running_tasks_are_shown_without_message_peeking(scene: Scene) -> None:
    scene.store.peeking = None
    with StepWorker(scene.app, on_demand=True, concurrency=1, hostname="w@h") as worker:
        scene.add.delay(1)
        scene.add.delay(2)
        begin(worker)
        assert [(task.state, task.name, task.worker) for task in scene.app.peek()] == [
            ("running", "add", "w@h")
        ]


class BlindStore(MemoryStore):
    """Shows neither messages nor workers."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.peeking = self.presence = None


def test_peek_is_refused_without_peeking_and_presence() -> None:
    with pytest.raises(NotSupported, match="cannot show messages without delivering them"):
        Scene(BlindStore).app.peek("celery")


def test_app_lists_workers_and_queues(scene: Scene) -> None:
    assert (scene.app.workers(), scene.app.queues()) == ([], [])
    for name in ("b@h", "a@h"):
        scene.store.another().register(name, ["celery"], 1)
    scene.add.delay(1)
    assert [worker.name for worker in scene.app.workers()] == ["a@h", "b@h"]
    assert [(info.queue, info.ready) for info in scene.app.queues()] == [("celery", 1)]
    assert [(info.queue, info.ready) for info in scene.app.queues("mail")] == [("mail", 0)]
