"""Settlements that a store refuses: who is to blame ends otherwise, and nobody else notices."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from qworker.components.receiving import settlements as room
from qworker.components.receiving.settlements import Settlements
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.testing import MemoryStore
from qworker.transports.lease import Ack, DeadLetter, Release, Settlement, Store
from tests.support.rooms import Rooms


class Picky(MemoryStore):
    """Refuses every batch with a settlement that *refuses* says. gone: raised first, at the call of that
    number."""

    refuses: Any = staticmethod(lambda settlement: False)
    gone: dict[int, Exception]
    calls = 0
    deaf = False
    """Nothing is confirmed."""

    def confirm(self) -> None:
        if self.deaf:
            raise BrokerUnavailable("no answer")

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.calls += 1
        if error := self.gone.pop(self.calls, None):
            raise error
        if any(map(self.refuses, settlements)):
            raise ValueError("not this\0one")
        return super().settle(generation, settlements)


class Desk:
    def __init__(self, refuses: Any = lambda settlement: False) -> None:
        self.rooms = Rooms()
        self.store = Picky(self.rooms.clock)
        self.store.refuses, self.store.gone = refuses, {}
        self.settlements = Settlements(self.rooms.app, self.store.consumer)
        self.generation = self.store.consumer.register("w@h", ["celery"], 2)

    def lease(self, count: int) -> list[int]:
        self.store.sender.push([self.rooms.envelope("add", number) for number in range(count)])
        return [leased.tag for leased in self.store.consumer.lease(["celery"], count).messages]

    def row(self, task_id: str, status: str = "SUCCESS", result: Any = None) -> Any:
        backend = self.rooms.app.backend
        return backend.row(task_id, backend.meta(task_id, status, result))

    def carry_out(self, *settlements: Settlement) -> set[int]:
        return self.settlements.carry_out(self.generation, settlements)

    def stored(self, task_id: str) -> Any:
        row = self.store.results.get(task_id)
        return None if row is None else self.rooms.app.backend.decode(row[2])

    def left(self) -> int:
        return self.store.messages


def bad(settlement: Settlement) -> bool:
    return not isinstance(settlement, Release) and settlement.row is not None and b"BAD" in settlement.row[2]


def test_of_a_batch_only_who_is_to_blame_ends_otherwise() -> None:
    desk = Desk(bad)
    tags = desk.lease(9)
    orders = [Ack(tag, desk.row(f"id-{tag}", result="BAD" if tag == tags[4] else tag)) for tag in tags]
    assert desk.carry_out(*orders) == set()
    states = {tag: desk.stored(f"id-{tag}")["status"] for tag in tags}
    assert states == {tag: "FAILURE" if tag == tags[4] else "SUCCESS" for tag in tags}
    assert desk.left() == 0
    assert desk.store.admin.dead() == []
    assert desk.store.calls <= 2 + 2 * 4, "halves, not one after the other"


def test_the_failure_says_why(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(bad)
    (tag,) = desk.lease(1)
    desk.carry_out(Ack(tag, desk.row("culprit", result="BAD")))
    (message,) = desk.stored("culprit")["result"]["exc_message"]
    assert message == "the broker refused how it ended: ValueError: not this\\x00one"
    assert f"task 'culprit' in message {tag}: the broker refused how it ended" in caplog.text


def test_a_state_that_is_not_final_stays_what_it_is() -> None:
    desk = Desk(bad)
    (tag,) = desk.lease(1)
    desk.carry_out(Ack(tag, desk.row("culprit", "RETRY", "BAD")), Store(desk.row("other", "STARTED", "BAD")))
    assert desk.stored("culprit")["status"] == "RETRY"
    assert desk.stored("other") is None
    assert desk.left() == 0


def test_what_no_row_helps_is_a_dead_letter() -> None:
    desk = Desk(lambda settlement: isinstance(settlement, Ack) and settlement.row is not None)
    (tag,) = desk.lease(1)
    desk.carry_out(Ack(tag, desk.row("culprit")))
    (letter,) = desk.store.admin.dead()
    assert letter.reason.startswith("the broker refused how it ended: ValueError")


def test_a_dead_letter_keeps_its_row_when_its_reason_is_to_blame() -> None:
    desk = Desk(lambda settlement: isinstance(settlement, DeadLetter) and "\0" in settlement.reason)
    (tag,) = desk.lease(1)
    desk.carry_out(DeadLetter(tag, "bad\0bad", desk.row("culprit", "FAILURE")))
    (letter,) = desk.store.admin.dead()
    assert letter.reason.startswith("'bad\\x00bad'; the broker refused")
    assert desk.stored("culprit")["status"] == "FAILURE"


@pytest.mark.parametrize("settlement", [Release(1, 5e9), Release(1, 5e9, counted=True)])
def test_what_cannot_go_back_as_it_should_goes_back_at_once(settlement: Release) -> None:
    desk = Desk(lambda settlement: isinstance(settlement, Release) and settlement.due is not None)
    (tag,) = desk.lease(1)
    desk.carry_out(settlement._replace(tag=tag))
    (leased,) = desk.store.consumer.lease(["celery"], 1).messages
    assert leased.deliveries == int(settlement.counted)


def test_what_can_be_settled_in_no_way_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    first, second = desk.lease(2)
    desk.store.refuses = lambda settlement: not isinstance(settlement, Store) and settlement.tag == first
    desk.carry_out(Ack(first), Ack(second))
    assert desk.left() == 1
    assert "cannot be settled" in caplog.text


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), LeaseLost("gone"), ConfigurationError("gone")])
def test_who_is_away_is_asked_again_and_nothing_is_done_twice(error: Exception) -> None:
    desk = Desk(bad)
    tags = desk.lease(4)
    orders = [Ack(tag, desk.row(f"id-{tag}", result="BAD" if tag == tags[3] else tag)) for tag in tags]
    desk.store.gone[3] = error  # the whole is refused, the first half settled, then it is gone
    with pytest.raises(type(error)):
        desk.carry_out(*orders)
    assert desk.left() == 2
    assert desk.carry_out(*orders) == set(), "what was settled before was not lost"
    assert desk.stored(f"id-{tags[3]}")["status"] == "FAILURE"
    assert desk.left() == 0


def test_under_a_new_lease_nothing_is_remembered() -> None:
    desk = Desk(bad)
    tags = desk.lease(2)
    desk.store.gone[2] = LeaseLost("gone")
    orders = [Ack(tags[0]), Ack(tags[1], desk.row("id", result="BAD"))]
    with pytest.raises(LeaseLost):
        desk.carry_out(*orders)
    assert desk.settlements.carry_out(desk.generation + 1, [Ack(tag) for tag in tags]) == set(tags)


def test_results_of_an_outage_are_stored_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PORTION_BYTES", 1000)
    desk = Desk()
    tags = desk.lease(5)
    desk.carry_out(*(Ack(tag, desk.row(f"id-{tag}", result="x" * 600)) for tag in tags))
    assert desk.store.calls == 3
    assert desk.left() == 0


def test_a_batch_that_is_taken_costs_one_call(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    tags = desk.lease(3)
    with caplog.at_level(logging.DEBUG, "qworker.components.receiving.settlements"):
        assert desk.carry_out(*map(Ack, tags), Ack(10**6)) == {10**6}
    assert desk.store.calls == 1
    assert caplog.text == ""


def test_what_was_carried_out_without_an_answer_is_not_lost() -> None:
    desk = Desk()
    first, second, third = desk.lease(3)
    desk.store.consumer.settle(desk.generation, [Ack(first), Ack(third)])
    desk.store.gone = {2: BrokerUnavailable("no answer")}
    with pytest.raises(BrokerUnavailable):
        desk.carry_out(Ack(first), Ack(second))
    assert desk.carry_out(Ack(first), Ack(second), Ack(third)) == {third}, "this one was told once only"
    assert desk.left() == 0


def test_what_was_not_confirmed_is_not_lost() -> None:
    desk = Desk()
    first, second = desk.lease(2)
    assert desk.carry_out(Ack(first), Ack(second)) == set()
    desk.store.deaf = True
    with pytest.raises(BrokerUnavailable):
        desk.settlements.confirm({first})
    desk.store.deaf = False
    assert desk.carry_out(Ack(first), Ack(second)) == {second}
    desk.settlements.confirm({first})
    assert desk.carry_out(Ack(first)) == {first}, "it is known by now"


def test_who_was_taken_for_dead_meanwhile_does_not_know_what_was_carried_out() -> None:
    desk = Desk()
    (tag,) = desk.lease(1)
    desk.store.consumer.settle(desk.generation, [Ack(tag)])
    desk.store.gone = {2: BrokerUnavailable("no answer")}
    with pytest.raises(BrokerUnavailable):
        desk.carry_out(Ack(tag))
    desk.store._building.queues.give_up(desk.generation)
    with pytest.raises(LeaseLost):
        desk.carry_out(Ack(tag))
