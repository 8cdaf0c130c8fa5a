"""celery.chord_unlock on a StepWorker: its retries, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qworker import QWorker
from qworker.canvas.signatures import Signature
from qworker.errors import ChordError
from qworker.testing import FakeClock, MemoryStore, StepWorker

pytestmark = pytest.mark.integration

INTERVAL = 5.0


class Env:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.app = QWorker(
            "unlock",
            broker=MemoryStore(self.clock),
            backend="cache+memory://",
            clock=self.clock,
            result_chord_retry_interval=INTERVAL,
            set_as_current=False,
        )
        self.ran: list[Any] = []
        self.notified: list[Any] = []

        @self.app.task(name="gather")
        def gather(values: Any) -> Any:
            self.ran.append(values)
            return values

        @self.app.task(name="nothing")
        def nothing() -> None:
            raise AssertionError

        @self.app.task(name="notified")
        def notified(failed: str) -> None:
            self.notified.append(failed)

    def unlock(self, members: Any, body: str = "gather", **options: Any) -> Any:
        callback = Signature(body, options={"task_id": "body", "link_error": [Signature("notified")]})
        arguments = {"result": members, **options}
        return self.app.send_task("celery.chord_unlock", ("group", dict(callback)), arguments)

    def end(self, task_id: str, value: Any, state: str = "SUCCESS") -> None:
        self.app.backend.store_result(task_id, value, state)

    @property
    def body(self) -> Any:
        return self.app.AsyncResult("body")


@pytest.fixture
def env() -> Iterator[Env]:
    env = Env()
    yield env
    env.app.close()


def one(task_id: str) -> Any:
    return [[task_id, None], None]


def test_chord_unlock_retries_until_all_members_have_ended(env: Env) -> None:
    nested = [["inner", None], [one("c"), one("d")]]
    with StepWorker(env.app) as worker:
        env.unlock([one("a"), one("b"), nested])
        for task_id in "abcd":
            worker.run()
            worker.advance(INTERVAL - 1)
            env.end(task_id, task_id.upper())
            assert env.ran == []
            worker.advance(1)
        assert env.ran == [["A", "B", ["C", "D"]]]
        assert env.body.get(timeout=5) == ["A", "B", ["C", "D"]]
        worker.advance(10 * INTERVAL)
    assert len(env.ran) == 1


def test_interval_argument_overrides_the_setting(env: Env) -> None:
    with StepWorker(env.app) as worker:
        env.unlock([one("a")], interval=50)
        worker.run()
        env.end("a", 1)
        worker.advance(49)
        assert env.ran == []
        worker.advance(1)
    assert env.ran == [[1]]


@pytest.mark.parametrize("state", ["FAILURE", "REVOKED"])
def test_failed_or_revoked_member_fails_the_body(env: Env, state: str) -> None:
    env.end("a", 1)
    env.end("b", ValueError("no"), state)
    with StepWorker(env.app) as worker:
        env.unlock([one("a"), one("b")])
        worker.run()
    with pytest.raises(ChordError, match=r"Dependency b raised ValueError\('no'\)"):
        env.body.get(timeout=5)
    assert (env.ran, env.notified) == ([], ["body"])


def test_body_fails_after_max_retries(env: Env) -> None:
    with StepWorker(env.app) as worker:
        env.unlock([one("a")], max_retries=2)
        for _ in range(2):
            worker.run()
            worker.advance(INTERVAL)
            worker.run()
        with pytest.raises(ChordError, match="chord_unlock could not be retried: MaxRetriesExceeded"):
            env.body.get(timeout=5)
    assert env.notified == ["body"]


def test_body_that_cannot_be_called_fails(env: Env) -> None:
    env.end("a", 1)
    with StepWorker(env.app) as worker:
        env.unlock([one("a")], body="nothing")
        worker.run()
    with pytest.raises(ChordError, match="Callback error: "):
        env.body.get(timeout=5)


@pytest.mark.parametrize("members", [None, 5, [5], [None], [[[]]]])
def test_invalid_members_fail_only_the_task(env: Env, members: Any) -> None:
    with StepWorker(env.app) as worker:
        env.unlock(members)
        worker.run()
        env.end("a", 1)
        env.unlock([one("a")])
        worker.run()
    assert env.ran == [[1]]
