"""The Settler: outcomes become settlement orders; the result is stored with them, before them, or alone."""

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
    COPY,
    EXPIRED,
    FAILURE,
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


class Setup:
    """A Settler; with *foreign*, results have a separate store, so that some orders wait for it."""

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
        meta = self.rooms.app.backend.codec.decode(row[2])
        assert row[:2] == (meta["task_id"], meta["status"])
        return meta["status"], meta["result"]["exc_type"]


def test_outcome_becomes_an_order_with_its_row() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(SUCCESS, row=ROW))])
    assert setup.order == SettlementOrder(one, Ack(1, ROW))


def test_several_outcomes_wake_the_listener_once() -> None:
    setup = Setup()
    requests = setup.rooms.requests(5)
    setup.settler.ended([(one, Outcome(SUCCESS)) for one in requests])
    assert setup.wakes == 1
    assert [order.request for order in setup.orders] == requests


@pytest.mark.parametrize(
    ("why", "status"),
    [(TIME_LIMIT, ("FAILURE", "TimeLimitExceeded")), (TERMINATED, ("REVOKED", "Terminated"))],
)
def test_ack_of_a_killed_task_carries_its_result(why: str, status: tuple[str, str]) -> None:
    setup = Setup()
    one = setup.rooms.request(1, timelimit=(9, None))
    setup.settler.ended([(one, Outcome(why, text="how"))])
    settlement = setup.order.settlement
    assert isinstance(settlement, Ack)
    assert setup.status(settlement.row) == status


def test_lost_task_is_released_and_counted() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(LOST, text="killed by SIGKILL"))])
    assert setup.order == SettlementOrder(one, Release(1, None, counted=True))


def test_interrupted_task_is_released_uncounted() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(INTERRUPTED, text="the worker ends"))])
    assert setup.order == SettlementOrder(one, Release(1, redelivered=True))


def test_terminated_task_is_stored_as_revoked() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(TERMINATED, text="terminated on request"))])
    settlement = setup.order.settlement
    assert isinstance(settlement, Ack)
    assert setup.status(settlement.row) == ("REVOKED", "Terminated")


def test_unstarted_requests_return_to_the_front_of_the_queue() -> None:
    setup = Setup()
    setup.ready.put_many(setup.rooms.requests(1, first=9))
    setup.settler.ended([(one, Outcome(UNSTARTED)) for one in setup.rooms.requests(2)])
    assert tags(setup.ready.get_many(Slots(9, 9))) == [1, 2, 9]
    assert setup.orders == []


@pytest.mark.parametrize("failing", [None, Failing(Outcome(EXPIRED, text="expired"), "REVOKED", {})])
def test_expired_lease_releases_without_a_result(failing: Failing | None) -> None:
    """The new holder of the message runs the task, or calls its errbacks."""
    setup = Setup()
    one = setup.rooms.request(1)
    one.failing = failing
    setup.settler.ended([(one, Outcome(LEASE_EXPIRED))])
    assert setup.order == SettlementOrder(one, Release(1, redelivered=True))


def test_retry_sent_for_a_killed_task_counts_as_a_retry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    one = setup.rooms.request(1, timelimit=[3, None])
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    with caplog.at_level("INFO"):
        setup.settler.ended([(one, Outcome(RETRY, text="Retry in 7s", row=ROW))])
    assert setup.order == SettlementOrder(one, Ack(1, ROW))
    assert "ran for 3.000000s, to be retried: Retry in 7s" in caplog.text


def test_failure_handling_is_repeated_in_another_child() -> None:
    """Three times: then without errbacks that run in it, as one of them may kill the child; then without
    messages."""
    setup = Setup()
    one = setup.rooms.request(1)
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    for runs, sends in ((True, True), (False, True), (False, False)):
        setup.settler.ended([(one, Outcome(LOST, text="signal 9"))])
        assert (tags(setup.ready.get_many(Slots(9, 9))), setup.orders) == ([1], [])
        assert one.failing.as_plain()[-2:] == (runs, sends)
    setup.settler.ended([(one, Outcome(LOST, text="signal 9"))])
    settlement = setup.order.settlement
    assert setup.status(settlement.row) == ("FAILURE", "TimeLimitExceeded")


def test_terminated_report_is_repeated() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    one.failing = Failing(Outcome(REVOKED, text="revoked"), "REVOKED", {})
    setup.settler.ended([(one, Outcome(TERMINATED, text="terminated"))])
    assert (setup.ready.get_many(Slots(9, 9)), setup.orders) == ([one], [])
    assert one.failing.deaths == 1


def test_handled_failure_of_a_lost_task_is_final() -> None:
    """It is not the loss of the handling child, which has the same kind of outcome."""
    setup = Setup()
    one = setup.rooms.request(1)
    one.failing = Failing(Outcome(LOST, text="signal 9"), "FAILURE", {})
    setup.settler.ended([(one, Outcome(LOST, text="signal 9", reported=True))])
    assert (setup.ready.get_many(Slots(9, 9)), len(setup.orders)) == ([], 1)


def test_success_stored_before_the_kill_counts(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    one = setup.rooms.request(1, timelimit=[3, None])
    one.failing = Failing(Outcome(TIME_LIMIT, text="killed"), "FAILURE", {})
    with caplog.at_level("INFO"):
        setup.settler.ended([(one, Outcome(SUCCESS, text="5", stored=True))])
    assert setup.order == SettlementOrder(one, Ack(1))
    assert "succeeded in 3.000000s: 5" in caplog.text


def test_failure_stored_before_the_revocation_counts(caplog: pytest.LogCaptureFixture) -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    one.failing = Failing(Outcome(REVOKED, text="revoked"), "REVOKED", {})
    with caplog.at_level("INFO"):
        setup.settler.ended([(one, Outcome(FAILURE, text="KeyError('x')", row=ROW, reported=True))])
    assert setup.order == SettlementOrder(one, Ack(1, ROW))
    assert "raised after 0.000000s: KeyError('x')" in caplog.text


def test_undecodable_body_is_dead_lettered_with_a_failure() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(INVALID, 0.0, "the body is cut off"))])
    settlement = setup.order.settlement
    assert isinstance(settlement, DeadLetter)
    assert settlement.reason == "invalid: the body is cut off"
    assert setup.status(settlement.row) == ("FAILURE", "InvalidTaskError")


def test_acked_message_with_an_undecodable_body_is_sent_again() -> None:
    setup = Setup(foreign=True)
    one = setup.rooms.request(1, "once")
    one.mark_acked()
    setup.settler.ended([(one, Outcome(INVALID, 0.0, "the body is cut off"))])
    assert setup.order == SettlementOrder(one, None, resend=True)


def test_started_state_is_stored_without_settling() -> None:
    setup = Setup()
    one = setup.rooms.request(1)
    setup.settler.started([(one, ROW)])
    assert setup.order == SettlementOrder(one, Store(ROW), final=False)


def test_separate_store_gets_the_result_before_the_ack() -> None:
    setup = Setup(foreign=True)
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(REVOKED, text="revoked"))])
    assert setup.orders == []
    writer = setup.writer
    assert writer is not None
    writer.step(0.0)
    assert setup.order == SettlementOrder(one, Ack(1))
    meta = setup.rooms.app.backend.get("id-1")
    assert meta is not None
    assert meta["status"] == "REVOKED"


def test_separate_store_gets_started_and_success_before_the_ack() -> None:
    setup = Setup(foreign=True)
    one = setup.rooms.request(1)
    backend = setup.rooms.app.backend
    started = backend.row("id-1", backend.meta("id-1", "STARTED"))
    row = backend.row("id-1", backend.meta("id-1", "SUCCESS", 5))
    assert started is not None
    setup.settler.started([(one, started)])
    setup.settler.ended([(one, Outcome(SUCCESS, row=row))])
    assert setup.orders == []
    writer = setup.writer
    assert writer is not None
    assert writer.held() == 2
    writer.step(0.0)
    assert setup.orders == [SettlementOrder(one, Ack(1))]
    assert (backend.get("id-1") or {})["result"] == 5


def test_orders_without_a_result_do_not_wait_for_the_store() -> None:
    setup = Setup(foreign=True)
    one = setup.rooms.request(1)
    setup.settler.ended([(one, Outcome(LOST, text="how")), (one, Outcome(SUCCESS))])
    assert [order.settlement for order in setup.orders] == [Release(1, None, counted=True), Ack(1)]


def test_refused_message_is_settled_with_its_request() -> None:
    setup = Setup()
    request = setup.rooms.request(1)
    setup.settler.refuse(request, Outcome(REVOKED, text="revoked"))
    order = setup.order
    assert order.request is request
    assert isinstance(order.settlement, Ack)
    assert setup.status(order.settlement.row) == ("REVOKED", "TaskRevokedError")


def test_copy_and_settlement_alone_have_no_request() -> None:
    """The request of a copy would be taken for that of the original."""
    setup = Setup()
    setup.settler.refuse(setup.rooms.request(1), Outcome(COPY, text="a copy"))
    assert setup.order == SettlementOrder(None, Ack(1))
    setup.settler.settle(Release(2, 1234.5))
    assert setup.order == SettlementOrder(None, Release(2, 1234.5))


# -- tasks that are acked before they run --


def test_early_acked_task_only_stores_its_result() -> None:
    setup = Setup()
    one = setup.rooms.request(1, "once")
    one.acked = True
    setup.settler.ended([(one, Outcome(SUCCESS, row=ROW))])
    assert setup.order == SettlementOrder(one, Store(ROW))
    setup.settler.ended([(one, Outcome(SUCCESS))])
    assert setup.order == SettlementOrder(one, None)


def test_early_acked_task_is_not_redelivered() -> None:
    setup = Setup()
    one = setup.rooms.request(1, "once")
    one.acked = True
    setup.settler.ended([(one, Outcome(LOST, text="killed by SIGKILL"))])
    settlement = setup.order.settlement
    assert isinstance(settlement, Store)
    assert setup.status(settlement.row) == ("FAILURE", "WorkerLostError")


@pytest.mark.parametrize("acked", [False, True])
def test_message_is_settled_after_results_of_its_followups_are_stored(acked: bool) -> None:
    """Otherwise they would be lost if the worker died in between."""
    setup = Setup(foreign=True)
    assert setup.writer is not None
    one = setup.rooms.request(1)
    one.acked = acked
    setup.settler.ended([(one, Outcome(SUCCESS, follow=((ROW, ()),)))])
    assert setup.orders == []
    setup.writer.step(0.0)
    result_order, order = setup.orders
    assert (result_order.request, result_order.settlement) == (None, None)
    assert (order.request, order.settlement) == (one, None if acked else Ack(1))
