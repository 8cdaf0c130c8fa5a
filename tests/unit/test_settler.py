"""How ends become orders, with the result along, ahead, or alone."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.components.ending.result_writer import ResultWriter
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.pool.contract import Slots
from qworker.components.request import Failing
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.tasks.outcome import (
    EXPIRED,
    INTERRUPTED,
    INVALID,
    LEASE_EXPIRED,
    LOST,
    RETRY,
    REVOKED,
    SUCCESS,
    TERMINATED,
    TIME_LIMIT,
    UNSTARTED,
    Outcome,
)
from qworker.transports.lease import Ack, DeadLetter, Release, Store
from tests.support.rooms import Rooms, tags

ROW = ("id-1", "SUCCESS", b"{}", None)


class Desk:
    """A Settler; *foreign*: results have a store of their own, so that some orders wait for it."""

    def __init__(self, foreign: bool = False) -> None:
        self.rooms = Rooms()
        self.ready = ReadyQueue()
        self.wakes = 0
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(self.wake)
        self.writer = None
        if foreign:
            self.writer = ResultWriter(self.rooms.app, lambda name, error: None, self.mailbox.post_many)
        self.settler = Settler(self.rooms.app, self.ready, self.mailbox, self.writer)

    def wake(self) -> None:
        self.wakes += 1

    @property
    def orders(self) -> list[SettlementOrder]:
        return self.mailbox.take()

    @property
    def order(self) -> SettlementOrder:
        (order,) = self.mailbox.take()
        return order

    def status(self, row: Any) -> tuple[str, str]:
        """The state and the exception in a row."""
        meta = self.rooms.app.backend.decode(row[2])
        assert row[:2] == (meta["task_id"], meta["status"])
        return meta["status"], meta["result"]["exc_type"]


def test_an_outcome_becomes_an_order_with_its_row() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(SUCCESS, row=ROW))])
    assert desk.order == SettlementOrder(one, Ack(1, ROW))


def test_many_ends_are_one_delivery() -> None:
    desk = Desk()
    requests = desk.rooms.requests(5)
    desk.settler.ended([(one, Outcome(SUCCESS)) for one in requests])
    assert desk.wakes == 1
    assert [order.request for order in desk.orders] == requests


@pytest.mark.parametrize(
    ("why", "status"),
    [(TIME_LIMIT, ("FAILURE", "TimeLimitExceeded")), (TERMINATED, ("REVOKED", "Terminated"))],
)
def test_what_the_worker_ended_has_its_result_along(why: str, status: tuple[str, str]) -> None:
    desk = Desk()
    one = desk.rooms.request(1, timelimit=(9, None))
    desk.settler.ended([(one, Outcome(why, text="how"))])
    settlement = desk.order.settlement
    assert isinstance(settlement, Ack)
    assert desk.status(settlement.row) == status


def test_what_was_lost_comes_again_and_counts() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(LOST, text="killed by SIGKILL"))])
    assert desk.order == SettlementOrder(one, Release(1, None, counted=True))


def test_what_was_interrupted_goes_back_and_does_not_count() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(INTERRUPTED, text="the worker ends"))])
    assert desk.order == SettlementOrder(one, Release(1, redelivered=True))


def test_a_task_cancelled_on_request_is_revoked() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(TERMINATED, text="terminated on request"))])
    settlement = desk.order.settlement
    assert isinstance(settlement, Ack)
    assert desk.status(settlement.row) == ("REVOKED", "Terminated")


def test_what_had_not_started_goes_back_to_the_front_of_the_queue() -> None:
    desk = Desk()
    desk.ready.put_many(desk.rooms.requests(1, first=9))
    desk.settler.ended([(one, Outcome(UNSTARTED)) for one in desk.rooms.requests(2)])
    assert tags(desk.ready.get_many(Slots(9, 9))) == [1, 2, 9]
    assert desk.orders == []


@pytest.mark.parametrize("failing", [None, Failing(Outcome(EXPIRED, text="expired"), "REVOKED", {})])
def test_what_others_have_is_no_end(failing: Failing | None) -> None:
    """Whether it was to run, or a child was to tell the calls that it carries: who has it now does that."""
    desk = Desk()
    one = desk.rooms.request(1)
    one.failing = failing
    desk.settler.ended([(one, Outcome(LEASE_EXPIRED))])
    assert desk.order == SettlementOrder(one, Release(1, redelivered=True))


def test_what_a_child_has_sent_again_on_hearing_of_its_end_has_not_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    one = desk.rooms.request(1, timelimit=[3, None])
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    with caplog.at_level("INFO"):
        desk.settler.ended([(one, Outcome(RETRY, text="Retry in 7s", row=ROW))])
    assert desk.order == SettlementOrder(one, Ack(1, ROW))
    assert "ran for 3.000000s, to be retried: Retry in 7s" in caplog.text


def test_another_child_tells_what_the_one_that_was_killed_did_not() -> None:
    """Twice, at last without the errbacks: one of them may be what kills them."""
    desk = Desk()
    one = desk.rooms.request(1)
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    for aloud in (True, False):
        desk.settler.ended([(one, Outcome(LOST, text="signal 9"))])
        assert (tags(desk.ready.get_many(Slots(9, 9))), desk.orders) == ([1], [])
        assert one.failing.told()[-1] is aloud
    desk.settler.ended([(one, Outcome(LOST, text="signal 9"))])
    settlement = desk.order.settlement
    assert desk.status(settlement.row) == ("FAILURE", "TimeLimitExceeded")


def test_what_a_child_has_told_of_a_lost_task_is_its_end() -> None:
    """Not the death of that child, though both are called lost."""
    desk = Desk()
    one = desk.rooms.request(1)
    one.failing = Failing(Outcome(LOST, text="signal 9"), "FAILURE", {})
    desk.settler.ended([(one, Outcome(LOST, text="signal 9", told=True))])
    assert (desk.ready.get_many(Slots(9, 9)), len(desk.orders)) == ([], 1)


def test_what_had_succeeded_before_it_was_killed_has_succeeded(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    one = desk.rooms.request(1, timelimit=[3, None])
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    with caplog.at_level("INFO"):
        desk.settler.ended([(one, Outcome(SUCCESS, text="5", stored=True))])
    assert desk.order == SettlementOrder(one, Ack(1))
    assert "succeeded in 3.000000s: 5" in caplog.text


def test_what_could_not_be_decoded_is_a_dead_letter_and_a_failure() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(INVALID, 0.0, "the body is cut off"))])
    settlement = desk.order.settlement
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "invalid: the body is cut off"
    assert desk.status(settlement.row) == ("FAILURE", "InvalidTaskError")


def test_what_was_acked_and_cannot_be_read_is_sent_again() -> None:
    desk = Desk(foreign=True)
    one = desk.rooms.request(1, "once")
    one.mark_acked()
    desk.settler.ended([(one, Outcome(INVALID, 0.0, "the body is cut off"))])
    assert desk.order == SettlementOrder(one, None, anew=True)


def test_a_started_task_has_its_state_stored_and_stays() -> None:
    desk = Desk()
    one = desk.rooms.request(1)
    desk.settler.started([(one, ROW)])
    assert desk.order == SettlementOrder(one, Store(ROW), final=False)


def test_a_result_with_a_store_of_its_own_goes_there_first() -> None:
    desk = Desk(foreign=True)
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(REVOKED, text="revoked"))])
    assert desk.orders == []
    writer = desk.writer
    assert writer is not None
    writer.step(0.0)
    assert desk.order == SettlementOrder(one, Ack(1))
    meta = desk.rooms.app.backend.get("id-1")
    assert meta is not None
    assert meta["status"] == "REVOKED"


def test_so_does_what_a_task_has_returned() -> None:
    desk = Desk(foreign=True)
    one = desk.rooms.request(1)
    backend = desk.rooms.app.backend
    started = backend.row("id-1", backend.meta("id-1", "STARTED"))
    row = backend.row("id-1", backend.meta("id-1", "SUCCESS", 5))
    assert started is not None
    desk.settler.started([(one, started)])
    desk.settler.ended([(one, Outcome(SUCCESS, row=row))])
    assert desk.orders == []
    writer = desk.writer
    assert writer is not None
    assert writer.held() == 2
    writer.step(0.0)
    assert desk.orders == [SettlementOrder(one, Ack(1))]
    assert (backend.get("id-1") or {})["result"] == 5


def test_what_has_nothing_to_store_does_not_wait_for_that_store() -> None:
    desk = Desk(foreign=True)
    one = desk.rooms.request(1)
    desk.settler.ended([(one, Outcome(LOST, text="how")), (one, Outcome(SUCCESS))])
    assert [order.settlement for order in desk.orders] == [Release(1, None, counted=True), Ack(1)]


def test_what_was_not_let_in_is_settled_without_a_request() -> None:
    desk = Desk()
    desk.settler.refuse(desk.rooms.request(1), Outcome(REVOKED, text="revoked"))
    order = desk.order
    assert order.request is None
    assert isinstance(order.settlement, Ack)
    assert desk.status(order.settlement.row) == ("REVOKED", "TaskRevokedError")
    desk.settler.settle(Release(2, 1234.5))
    assert desk.order == SettlementOrder(None, Release(2, 1234.5))


# -- tasks that are acked before they run --


def test_of_a_task_acked_before_it_ran_only_the_result_is_left_to_store() -> None:
    desk = Desk()
    one = desk.rooms.request(1, "once")
    one.acked = True
    desk.settler.ended([(one, Outcome(SUCCESS, row=ROW))])
    assert desk.order == SettlementOrder(one, Store(ROW))
    desk.settler.ended([(one, Outcome(SUCCESS))])
    assert desk.order == SettlementOrder(one, None)


def test_a_task_acked_before_it_ran_never_comes_again() -> None:
    desk = Desk()
    one = desk.rooms.request(1, "once")
    one.acked = True
    desk.settler.ended([(one, Outcome(LOST, text="killed by SIGKILL"))])
    settlement = desk.order.settlement
    assert isinstance(settlement, Store)
    assert desk.status(settlement.row) == ("FAILURE", "WorkerLostError")


@pytest.mark.parametrize("acked", [False, True])
def test_a_message_is_settled_once_the_results_that_end_along_are_stored(acked: bool) -> None:
    """They would be lost if the worker died in between."""
    desk = Desk(foreign=True)
    assert desk.writer is not None
    one = desk.rooms.request(1)
    one.acked = acked
    desk.settler.ended([(one, Outcome(SUCCESS, follow=((ROW, ()),)))])
    assert desk.orders == []
    desk.writer.step(0.0)
    along, order = desk.orders
    assert (along.request, along.settlement) == (None, None)
    assert (order.request, order.settlement) == (one, None if acked else Ack(1))
