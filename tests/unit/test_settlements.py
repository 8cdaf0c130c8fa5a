"""Settlements that a broker rejects: the offending message is settled differently, others are unaffected."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

import pytest

from qworker.components.receiving import settlements as room
from qworker.components.receiving.settlements import Settlements
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.testing import MemoryStore
from qworker.transports.lease import Ack, DeadLetter, Part, Release, Settlement, Store
from tests.support.rooms import Rooms, tags


class Picky(MemoryStore):
    """Rejects each batch with a settlement for which *refuses* is true. gone: errors raised first, by
    the number of the call."""

    refuses: Any = staticmethod(lambda settlement: False)
    gone: dict[int, Exception]
    calls = 0
    settled: list[Settlement]
    confirm_fails = False
    """Whether confirm() fails."""

    def confirm(self) -> None:
        if self.confirm_fails:
            raise BrokerUnavailable("no answer")

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.calls += 1
        if error := self.gone.pop(self.calls, None):
            raise error
        if any(map(self.refuses, settlements)):
            raise ValueError("not this\0one")
        self.settled += settlements
        return super().settle(generation, settlements)


class Setup:
    def __init__(self, refuses: Any = lambda settlement: False, kind: Any = Picky) -> None:
        self.rooms = Rooms()
        self.store = kind(self.rooms.clock)
        self.store.refuses, self.store.gone, self.store.settled = refuses, {}, []
        self.settlements = Settlements(self.rooms.app, self.store.consumer)
        self.generation = self.store.consumer.register("w@h", ["celery"], 2)

    def lease(self, count: int) -> list[int]:
        self.store.sender.push([self.rooms.envelope("add", number) for number in range(count)])
        return [leased.tag for leased in self.store.consumer.lease(["celery"], count).messages]

    def row(self, task_id: str, status: str = "SUCCESS", result: Any = None) -> Any:
        backend = self.rooms.app.backend
        return backend.row(task_id, backend.meta(task_id, status, result))

    def carry_out(self, *settlements: Settlement, early: Sequence[int] = ()) -> set[int]:
        return self.settlements.carry_out(self.generation, settlements, early)

    def stored(self, task_id: str) -> Any:
        row = self.store.results.get(task_id)
        return None if row is None else self.rooms.app.backend.codec.decode(row[2])

    def left(self) -> int:
        return self.store.messages


class Slow(MemoryStore):
    """Settling takes two seconds."""

    extended = 0

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.clock.advance(2)  # type: ignore[attr-defined]
        return super().settle(generation, settlements)

    def extend(self) -> None:
        self.extended += 1
        super().extend()


def test_lease_is_renewed_while_large_results_are_stored() -> None:
    setup = Setup(kind=Slow)
    store: Any = setup.store
    large = b"x" * room.PORTION_BYTES
    orders = [Ack(tag, (f"id-{tag}", "SUCCESS", large, None)) for tag in setup.lease(12)]
    assert setup.carry_out(*orders) == set()
    assert setup.left() == 0
    assert store.extended == 3  # in 24 s, with a lease of 15


def bad(settlement: Settlement) -> bool:
    return not isinstance(settlement, Release) and settlement.row is not None and b"BAD" in settlement.row[2]


def test_only_the_rejected_settlement_of_a_batch_is_replaced() -> None:
    setup = Setup(bad)
    tags = setup.lease(9)
    orders = [Ack(tag, setup.row(f"id-{tag}", result="BAD" if tag == tags[4] else tag)) for tag in tags]
    assert setup.carry_out(*orders) == set()
    states = {tag: setup.stored(f"id-{tag}")["status"] for tag in tags}
    assert states == {tag: "FAILURE" if tag == tags[4] else "SUCCESS" for tag in tags}
    assert setup.left() == 0
    assert setup.store.admin.dead() == []
    assert setup.store.calls <= 2 + 2 * 4, "the batch is bisected, not settled one by one"


def test_failure_tells_why_the_settlement_was_rejected(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup(bad)
    (tag,) = setup.lease(1)
    setup.carry_out(Ack(tag, setup.row("culprit", result="BAD")))
    (message,) = setup.stored("culprit")["result"]["exc_message"]
    assert message == "the broker refused its outcome: ValueError: not this\\x00one"
    assert f"task 'culprit' in message {tag}: the broker refused its outcome" in caplog.text


def test_nonfinal_states_are_kept() -> None:
    setup = Setup(bad)
    (tag,) = setup.lease(1)
    setup.carry_out(
        Ack(tag, setup.row("culprit", "RETRY", "BAD")), Store(setup.row("other", "STARTED", "BAD"))
    )
    assert setup.stored("culprit")["status"] == "RETRY"
    assert setup.stored("other") is None
    assert setup.left() == 0


def test_message_is_dead_lettered_if_no_result_is_accepted() -> None:
    setup = Setup(lambda settlement: isinstance(settlement, Ack) and settlement.row is not None)
    (tag,) = setup.lease(1)
    setup.carry_out(Ack(tag, setup.row("culprit")))
    (dead_letter,) = setup.store.admin.dead()
    assert dead_letter.reason.startswith("the broker refused its outcome: ValueError")


def test_parts_of_a_result_that_is_rejected_with_its_failure_are_recorded() -> None:
    setup, part = Setup(lambda settlement: settlement.row is not None), Part("join", 0, "culprit", "SUCCESS")
    list(setup.settlements.store([Store(setup.row("culprit"), (part,))]))  # acked before it ran
    assert setup.store.settled[-1:] == [Store(None, (part._replace(status="FAILURE"),))]


def test_dead_letter_with_a_rejected_reason_keeps_its_result() -> None:
    setup = Setup(lambda settlement: isinstance(settlement, DeadLetter) and "\0" in settlement.reason)
    (tag,) = setup.lease(1)
    setup.carry_out(DeadLetter(tag, "bad\0bad", setup.row("culprit", "FAILURE")))
    (dead_letter,) = setup.store.admin.dead()
    assert dead_letter.reason.startswith("'bad\\x00bad'; the broker refused")
    assert setup.stored("culprit")["status"] == "FAILURE"


@pytest.mark.parametrize("settlement", [Release(1, 5e9), Release(1, 5e9, counted=True)])
def test_rejected_delayed_release_becomes_an_immediate_one(settlement: Release) -> None:
    setup = Setup(lambda settlement: isinstance(settlement, Release) and settlement.due is not None)
    (tag,) = setup.lease(1)
    setup.carry_out(settlement._replace(tag=tag))
    (leased,) = setup.store.consumer.lease(["celery"], 1).messages
    assert leased.deliveries == int(settlement.counted)


def test_unsettleable_message_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    first, second = setup.lease(2)
    setup.store.refuses = lambda settlement: not isinstance(settlement, Store) and settlement.tag == first
    setup.carry_out(Ack(first), Ack(second))
    assert setup.left() == 1
    assert "cannot be settled" in caplog.text


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), LeaseLost("gone"), ConfigurationError("gone")])
def test_settling_resumes_after_an_error_without_repeating(error: Exception) -> None:
    setup = Setup(bad)
    tags = setup.lease(4)
    orders = [Ack(tag, setup.row(f"id-{tag}", result="BAD" if tag == tags[3] else tag)) for tag in tags]
    setup.store.gone[3] = error  # the whole is refused, the first half settled, then it is gone
    with pytest.raises(type(error)):
        setup.carry_out(*orders)
    assert setup.left() == 2
    assert setup.carry_out(*orders) == set(), "settlements that were done before count"
    assert setup.stored(f"id-{tags[3]}")["status"] == "FAILURE"
    assert setup.left() == 0


def test_new_generation_forgets_earlier_settlements() -> None:
    setup = Setup(bad)
    tags = setup.lease(2)
    setup.store.gone[2] = LeaseLost("gone")
    orders = [Ack(tags[0]), Ack(tags[1], setup.row("id", result="BAD"))]
    with pytest.raises(LeaseLost):
        setup.carry_out(*orders)
    assert setup.settlements.carry_out(setup.generation + 1, [Ack(tag) for tag in tags]) == set(tags)


def test_large_batches_are_settled_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PORTION_BYTES", 1000)
    setup = Setup()
    tags = setup.lease(5)
    setup.carry_out(*(Ack(tag, setup.row(f"id-{tag}", result="x" * 600)) for tag in tags))
    assert setup.store.calls == 3
    assert setup.left() == 0


def test_accepted_batch_costs_one_call(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    tags = setup.lease(3)
    with caplog.at_level(logging.DEBUG, "qworker.components.receiving.settlements"):
        assert setup.carry_out(*map(Ack, tags), Ack(10**6)) == {10**6}
    assert setup.store.calls == 1
    assert caplog.text == ""


def test_settlement_carried_out_before_an_error_is_not_reported_as_lost() -> None:
    setup = Setup()
    first, second, third = setup.lease(3)
    setup.store.consumer.settle(setup.generation, [Ack(first), Ack(third)])
    setup.store.gone = {2: BrokerUnavailable("no answer")}
    with pytest.raises(BrokerUnavailable):
        setup.carry_out(Ack(first), Ack(second))
    assert setup.carry_out(Ack(first), Ack(second), Ack(third)) == {third}, (
        "it was not part of the failed call"
    )
    assert setup.left() == 0


def test_unconfirmed_settlement_is_not_reported_as_lost() -> None:
    setup = Setup()
    first, second = setup.lease(2)
    assert setup.carry_out(Ack(first), Ack(second), early=[first]) == set()
    setup.store.confirm_fails = True
    with pytest.raises(BrokerUnavailable):
        setup.settlements.confirm()
    setup.store.confirm_fails = False
    assert setup.carry_out(Ack(first), Ack(second), early=[first]) == {second}
    setup.settlements.confirm()
    assert setup.settlements.uncertain == set()
    assert setup.carry_out(Ack(first)) == {first}, "it has been confirmed"


def test_acks_of_an_earlier_lease_are_not_unanswered() -> None:
    """Another worker has run the message since: it must not look as if our ack had been carried out."""
    setup = Setup()
    (tag,) = setup.lease(1)
    setup.store.gone = {1: BrokerUnavailable("no answer")}
    with pytest.raises(BrokerUnavailable):
        setup.carry_out(Ack(tag), early=[tag])
    setup.store._building.queues.give_up(setup.generation)
    setup.generation = setup.store.consumer.register("w@h", ["celery"], 1)
    assert tags(setup.store.consumer.lease(["celery"], 1).messages) == [tag]
    setup.store._building.queues.messages.pop(tag)  # reclaimed and run by another worker
    setup.store.confirm_fails = True
    setup.carry_out()
    with pytest.raises(BrokerUnavailable):
        setup.settlements.confirm()
    setup.store.confirm_fails = False
    assert setup.carry_out(Ack(tag), early=[tag]) == {tag}


def test_broker_is_asked_about_all_late_settlements() -> None:
    """It remembers them until then."""

    class Asked(Picky):
        asked: ClassVar[list[int]] = []

        def in_doubt(self, tags: Collection[int]) -> Collection[int]:
            self.asked.extend(tags)
            return ()

    setup = Setup(kind=Asked)
    assert setup.carry_out(Ack(7), Release(8)) == {7, 8}
    assert sorted(Asked.asked) == [7, 8]


def test_reclaimed_consumer_gets_lease_lost() -> None:
    setup = Setup()
    (tag,) = setup.lease(1)
    setup.store.consumer.settle(setup.generation, [Ack(tag)])
    setup.store.gone = {2: BrokerUnavailable("no answer")}
    with pytest.raises(BrokerUnavailable):
        setup.carry_out(Ack(tag))
    setup.store._building.queues.give_up(setup.generation)
    with pytest.raises(LeaseLost):
        setup.carry_out(Ack(tag))
