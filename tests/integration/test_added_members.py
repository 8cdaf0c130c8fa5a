"""Members that a task adds to its chord and that cannot be sent: the chord fails instead of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chord
from qworker.backends.keyvalue.memory import MemoryBackend
from qworker.errors import BackendError, ChordError, EncodeError
from qworker.testing import FakeClock, MemoryStore, StepWorker
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration


class UnavailableBackend(MemoryBackend):
    """A result backend that cannot save groups while ``away``."""

    away = True

    def save_group(self, group_id: str, payload: Any, kept: float = 0.0) -> None:
        if self.away:
            raise BackendError("away")
        super().save_group(group_id, payload, kept)


@pytest.fixture(params=["memory", "sqlite", "redis, shared", "redis, celery"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QWorker]:
    settings: dict[str, Any] = {"broker": f"sqlite:///{tmp_path}/q.db"}
    if request.param == "memory":
        settings = {"broker": MemoryStore(), "backend": "cache+memory://"}
    elif request.param != "sqlite":
        options = {"global_keyprefix": prefix_of(tmp_path)}
        settings = {
            "broker": require("redis"),
            "backend": require("redis"),
            "broker_transport_options": options,
            "result_backend_transport_options": options,
            "canvas_format": request.param.partition(", ")[2],
        }
    app = QWorker("added", set_as_current=False, **settings)
    yield app
    app.close()


def added(app: QWorker, caught: bool, again: bool = False, given: object = object()) -> Any:
    """Return the result of a chord with a member that adds an unsendable member. caught: the task catches the
    error. again: the task is retried."""

    @app.task(name="give")
    def give(*values: Any) -> int:
        return 1

    @app.task(name="grows", bind=True)
    def grows(this: Any) -> int:
        try:
            this.add_to_chord(give.s(given))
        except (EncodeError, BackendError) as error:
            if again and not this.request.retries:
                raise this.retry(exc=error, countdown=0) from error
            if not caught:
                raise
        return 2

    result = chord([grows.si(), give.si()], give.s(), app=app).apply_async()
    with StepWorker(app) as worker:
        worker.run()
    return result


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_unsendable_member_fails_the_chord(app: QWorker, caught: bool, again: bool) -> None:
    result = added(app, caught, again)
    assert result.state == "FAILURE"
    assert isinstance(result.result, ChordError)
    assert result.parent.results[0].state == ("SUCCESS" if caught else "FAILURE")


@pytest.mark.parametrize("caught", [True, False])
def test_member_that_cannot_be_recorded_fails_the_chord(caught: bool) -> None:
    """With a security_key, added members are recorded."""
    key, clock = ["k" * 32], FakeClock()
    conf = QWorker("plain", set_as_current=False, security_key=key).conf
    backend = UnavailableBackend("cache+memory://", conf, clock)
    store = MemoryStore(clock)
    app = QWorker("noted", broker=store, backend=backend, clock=clock, set_as_current=False, security_key=key)
    result = added(app, caught, given=1)
    assert result.state == "FAILURE"
    backend.away = False
    assert added(app, caught, given=1).get(timeout=5) == 1


class LostReplyBackend(MemoryBackend):
    """lost: number of replies of grow() that are lost after it was done."""

    lost = 0

    @property
    def joins(self) -> Any:
        joins: Any = super().joins
        grow = joins.grow

        def grow_and_fail(join: str, task_id: str) -> int | None:
            number: int | None = grow(join, task_id)
            if self.lost:
                self.lost -= 1
                raise BackendError("no answer")
            return number

        joins.grow = grow_and_fail
        return joins


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("lost", [1, 2])
def test_member_is_sent_if_the_reply_of_grow_is_lost(caught: bool, lost: int) -> None:
    """A repeated call returns the same number; if it fails again, the task is requeued."""
    clock = FakeClock()
    backend = LostReplyBackend("cache+memory://", QWorker("plain", set_as_current=False).conf, clock)
    backend.lost = lost
    app = QWorker("mute", broker=MemoryStore(clock), backend=backend, clock=clock, set_as_current=False)
    result = added(app, caught, given=1)
    with StepWorker(app) as worker:
        worker.advance(60)
    assert result.state == "SUCCESS"
    assert [each.result for each in result.parent.results] == [2, 1]
    assert backend.joins.count() == 0
