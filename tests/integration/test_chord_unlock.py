"""celery.chord_unlock on a worker that is stepped: when it looks again, and what it makes of what it sees."""

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


class House:
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
        self.told: list[Any] = []

        @self.app.task(name="gather")
        def gather(values: Any) -> Any:
            self.ran.append(values)
            return values

        @self.app.task(name="nothing")
        def nothing() -> None:
            raise AssertionError

        @self.app.task(name="told")
        def told(failed: str) -> None:
            self.told.append(failed)

    def unlock(self, members: Any, body: str = "gather", **options: Any) -> Any:
        callback = Signature(body, options={"task_id": "body", "link_error": [Signature("told")]})
        arguments = {"result": members, **options}
        return self.app.send_task("celery.chord_unlock", ("group", dict(callback)), arguments)

    def end(self, task_id: str, value: Any, state: str = "SUCCESS") -> None:
        self.app.backend.store_result(task_id, value, state)

    @property
    def body(self) -> Any:
        return self.app.AsyncResult("body")


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.app.close()


def one(task_id: str) -> Any:
    return [[task_id, None], None]


def test_it_looks_again_after_its_interval_until_all_have_ended(house: House) -> None:
    nested = [["inner", None], [one("c"), one("d")]]
    with StepWorker(house.app) as worker:
        house.unlock([one("a"), one("b"), nested])
        for task_id in "abcd":
            worker.run()
            worker.advance(INTERVAL - 1)
            house.end(task_id, task_id.upper())
            assert house.ran == []
            worker.advance(1)
        assert house.ran == [["A", "B", ["C", "D"]]]
        assert house.body.get(timeout=5) == ["A", "B", ["C", "D"]]
        worker.advance(10 * INTERVAL)
    assert len(house.ran) == 1


def test_its_own_interval_comes_first(house: House) -> None:
    with StepWorker(house.app) as worker:
        house.unlock([one("a")], interval=50)
        worker.run()
        house.end("a", 1)
        worker.advance(49)
        assert house.ran == []
        worker.advance(1)
    assert house.ran == [[1]]


@pytest.mark.parametrize("state", ["FAILURE", "REVOKED"])
def test_a_member_that_has_not_succeeded_fails_the_body(house: House, state: str) -> None:
    house.end("a", 1)
    house.end("b", ValueError("no"), state)
    with StepWorker(house.app) as worker:
        house.unlock([one("a"), one("b")])
        worker.run()
    with pytest.raises(ChordError, match=r"Dependency b raised ValueError\('no'\)"):
        house.body.get(timeout=5)
    assert (house.ran, house.told) == ([], ["body"])


def test_when_it_has_looked_often_enough_the_body_fails(house: House) -> None:
    with StepWorker(house.app) as worker:
        house.unlock([one("a")], max_retries=2)
        for _ in range(2):
            worker.run()
            worker.advance(INTERVAL)
            worker.run()
        with pytest.raises(ChordError, match="chord_unlock could not be retried: MaxRetriesExceeded"):
            house.body.get(timeout=5)
    assert house.told == ["body"]


def test_a_body_that_cannot_be_called_fails(house: House) -> None:
    house.end("a", 1)
    with StepWorker(house.app) as worker:
        house.unlock([one("a")], body="nothing")
        worker.run()
    with pytest.raises(ChordError, match="Callback error: "):
        house.body.get(timeout=5)


@pytest.mark.parametrize("members", [None, 5, [5], [None], [[[]]]])
def test_what_names_no_members_fails_the_task_and_nothing_else(house: House, members: Any) -> None:
    with StepWorker(house.app) as worker:
        house.unlock(members)
        worker.run()
        house.end("a", 1)
        house.unlock([one("a")])
        worker.run()
    assert house.ran == [[1]]
