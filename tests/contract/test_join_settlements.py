"""Parts recorded with the ack: one suite for every broker that stores results itself."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.backends import Backend
from qworker.backends.joins import Join
from qworker.transports.lease import Ack, Broker, DeadLetter, Leased, Part, Release, ResultRow, Store
from tests.contract.join_places import JOIN_PLACES, JoinPlace, start_process
from tests.contract.join_steps import BODY, parts
from tests.support.messages import message, names
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.contract

SETTLING = [kind for kind, place in JOIN_PLACES.items() if getattr(place, "settles", False)]


@pytest.fixture(params=SETTLING)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(place: JoinPlace) -> Iterator[Backend]:
    backend = place.backend()
    yield backend
    backend.close()


def row(backend: Backend, number: int, status: str = "SUCCESS") -> ResultRow:
    found = backend.row(f"task-a-{number}", backend.meta(f"task-a-{number}", status, number))
    assert found is not None
    return found


def taken(broker: Broker, count: int) -> tuple[int, list[Leased]]:
    """Register and lease *count* messages; return the generation and the messages."""
    generation = broker.consumer.register("w1@test", ["q"], 1)
    broker.sender.push([message(str(number)) for number in range(count)])
    found: list[Leased] = []
    while len(found) < count:
        found += broker.consumer.lease(["q"], count - len(found)).messages
    return generation, found


def test_ack_records_its_parts(broker: Broker, backend: Backend, place: JoinPlace) -> None:
    backend.joins.open([Join("a", 3, BODY), Join("b", 1, BODY)])
    generation, (first, second, third) = taken(broker, 3)
    both = (*parts("a", [0]), *parts("b", [0]))
    acks = [Ack(first.tag, row(backend, 0), both), Ack(second.tag, None, tuple(parts("a", [1])))]
    assert broker.consumer.settle(generation, acks) == set()
    (join,) = backend.joins.claim(10, 30)
    assert (join.id, list(join.parts)) == ("b", parts("b", [0]))
    assert (
        broker.consumer.settle(generation, [Ack(third.tag, row(backend, 2), tuple(parts("a", [2])))]) == set()
    )
    (join,) = backend.joins.claim(10, 30)
    assert (join.id, list(join.parts)) == ("a", parts("a", range(3)))
    assert set(backend.get_many(["task-a-0", "task-a-1", "task-a-2"])) == {"task-a-0", "task-a-2"}
    backend.joins.drop(["a", "b"])
    assert place.left() == 0


def test_every_settlement_but_a_release_records_its_parts(broker: Broker, backend: Backend) -> None:
    backend.joins.open([Join("a", 6, BODY)])
    generation, (one, two, three, four) = taken(broker, 4)
    lost = four.tag + 1
    settlements = [
        Ack(lost),
        Store(None, tuple(parts("a", [5], "IGNORED"))),
        Store(row(backend, 0), tuple(parts("a", [0], "REVOKED"))),
        DeadLetter(one.tag, "why", row(backend, 1, "FAILURE"), parts=tuple(parts("a", [1], "FAILURE"))),
        DeadLetter(two.tag, "why", parts=tuple(parts("a", [2], "FAILURE"))),
        Release(three.tag),
        Ack(four.tag, row(backend, 3), tuple(parts("a", [3]))),
    ]
    assert broker.consumer.settle(generation, settlements) == {lost}
    assert backend.joins.claim(10, 30) == []
    backend.joins.add(parts("a", [4]))
    (join,) = backend.joins.claim(10, 30)
    statuses = ["REVOKED", "FAILURE", "FAILURE", "SUCCESS", "SUCCESS", "IGNORED"]
    assert [part.status for part in join.parts] == statuses
    assert [part.task_id for part in join.parts] == [f"task-a-{number}" for number in range(6)]


def test_parts_of_unknown_messages_are_not_recorded(
    broker: Broker, backend: Backend, place: JoinPlace
) -> None:
    backend.joins.open([Join("a", 4, BODY)])
    generation, (one, two) = taken(broker, 2)
    unknown = two.tag + 1000
    settlements = [
        Ack(unknown, None, tuple(parts("a", [0]))),
        DeadLetter(unknown + 1, "why", None, parts=tuple(parts("a", [1]))),
        Ack(one.tag, None, tuple(parts("a", [2]))),
    ]
    assert broker.consumer.settle(generation, settlements) == {unknown, unknown + 1}
    assert broker.consumer.settle(generation - 1, [Ack(two.tag, None, tuple(parts("a", [3])))]) == {two.tag}
    assert place.left() == 2, "the join and one part"


def test_parts_without_a_join_are_ignored(broker: Broker, backend: Backend, place: JoinPlace) -> None:
    """Even if no join was ever opened."""
    generation, (one, two) = taken(broker, 2)
    invalid = [
        Part(name, number, "task", "SUCCESS")
        for name in ("x", "x" * 300, "\udc80\0")
        for number in (0, -1, 2**80)
    ]
    settlements = [
        Ack(one.tag, row(backend, 0), tuple(invalid)),
        DeadLetter(two.tag, "why", parts=tuple(invalid)),
    ]
    assert broker.consumer.settle(generation, settlements) == set()
    backend.joins.open([Join("a", 1, BODY)])
    backend.joins.drop(["a"])
    assert place.left() == 0


def test_consumer_records_parts_of_a_join_opened_later(broker: Broker, backend: Backend) -> None:
    generation, (one, two) = taken(broker, 2)
    assert (
        broker.consumer.settle(generation, [Ack(one.tag, row(backend, 0), tuple(parts("a", [0])))]) == set()
    )
    backend.joins.open([Join("a", 1, BODY)])
    assert (
        broker.consumer.settle(generation, [Ack(two.tag, row(backend, 0), tuple(parts("a", [0])))]) == set()
    )
    assert len(backend.joins.claim(10, 30)) == 1


SETTLING_SCRIPT = """
from qworker.transports.lease import Ack
generation = broker.consumer.register("w2@test", ["q"], 1)
(taken,) = broker.consumer.lease(["q"], 1).messages
backend = place.backend()
row = backend.row("task-a-0", backend.meta("task-a-0", "SUCCESS", 0))
print("settling", flush=True)
broker.consumer.settle(generation, [Ack(taken.tag, row, tuple(parts("a", [0])))])
"""


@pytest.mark.parametrize("point", ["acking", "recording-parts", "parts-recorded"])
def test_settling_records_ack_and_parts_atomically(
    broker: Broker, backend: Backend, place: JoinPlace, kind: str, tmp_path: Path, point: str
) -> None:
    backend.joins.open([Join("a", 1, BODY)])
    broker.consumer.register("w1@test", ["q"], 1)
    broker.sender.push([message("a")])
    hit = tmp_path / "hit"
    other = start_process(kind, tmp_path, SETTLING_SCRIPT, crash_at=f"{point}@{hit}")
    assert other.communicate(timeout=PATIENCE)[0] == "settling\n"
    assert other.returncode == -signal.SIGKILL
    if point == "parts-recorded" and place.one_step:
        assert place.left() == 2, "the join and its part"
        assert backend.get("task-a-0") is not None
        until(broker.consumer.reclaim)
        assert broker.consumer.lease(["q"], 1).messages == []
        return
    assert place.left() == 1, "the join alone"
    assert backend.get("task-a-0") is None
    until(broker.consumer.reclaim)
    assert names(broker.consumer.lease(["q"], 1).messages) == ["a"]
