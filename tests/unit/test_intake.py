"""The intake: what the listener does with one message."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from qworker import signals
from qworker.components.ending.settler import Settler
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.receiving.intake import Intake
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.replays import Replays
from qworker.components.request import Request
from qworker.components.waiting.ready_queue import ReadyQueue
from qworker.transports.lease import Ack, DeadLetter, Leased, Release, Revocation, Settlement
from tests.support.rooms import Rooms


class IntakeRig:
    """An Intake, and the settlements it makes."""

    def __init__(self, **settings: Any) -> None:
        self.rooms = Rooms(task_unknown_delays=(30.0, 120.0), **settings)
        self.state = WorkerState(replays=Replays() if "security_key" in settings else None)
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(lambda: None)
        settler = Settler(self.rooms.app, ReadyQueue(), self.mailbox)
        self.settled: list[Settlement] = []
        self.orders: list[SettlementOrder] = []
        self.intake = Intake(self.rooms.app, self.state, settler.settle, settler.refuse)

    def take(self, leased: Leased, generation: int = 1) -> Request | None:
        request = self.intake.take(leased, generation, self.rooms.clock.now())
        for order in self.mailbox.take():
            assert order.settlement is not None
            self.orders.append(order)
            self.settled.append(order.settlement)
        return request

    @property
    def settlement(self) -> Settlement:
        """The only settlement, without its row."""
        (settlement,) = self.settled
        return settlement._replace(row=None) if isinstance(settlement, Ack | DeadLetter) else settlement

    @property
    def meta(self) -> dict[str, Any] | None:
        """The decoded result in the row of the only settlement."""
        (settlement,) = self.settled
        row = None if isinstance(settlement, Release) else settlement.row
        return None if row is None else dict(self.rooms.app.backend.codec.decode(row[2]))


@pytest.fixture
def signals_sent() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The signals that were sent, in order."""
    sent: list[tuple[str, dict[str, Any]]] = []
    observed = ("task_received", "task_revoked", "task_unknown", "task_rejected")
    receivers = []
    for name in observed:

        def receiver(signal_name: str = name, **fields: Any) -> None:
            sent.append((signal_name, fields))

        getattr(signals, name).connect(receiver, weak=False)
        receivers.append((name, receiver))
    yield sent
    for name, receiver in receivers:
        getattr(signals, name).disconnect(receiver)


SignalsSent = list[tuple[str, dict[str, Any]]]


# -- accepted messages --


def test_valid_message_becomes_a_request_in_the_ledger(
    signals_sent: SignalsSent, caplog: pytest.LogCaptureFixture
) -> None:
    rig = IntakeRig()
    with caplog.at_level(logging.DEBUG):
        request = rig.take(rig.rooms.leased(7, "add", 1, 2), generation=3)
    assert request is not None
    assert (request.tag, request.id, request.name, request.generation) == (7, "id-7", "add", 3)
    assert rig.state.requests == {request.key: request}
    assert rig.settled == []
    assert [(name, fields["request"]) for name, fields in signals_sent] == [("task_received", request)]
    assert "Task add[id-7] received" in caplog.text


def test_request_in_signals_has_the_attributes_of_celery(signals_sent: SignalsSent) -> None:
    rig = IntakeRig()
    rig.take(
        rig.rooms.leased(
            7, parent_id="p", stamped_headers=["mine"], stamps={"mine": 1}, headers={"mine": 1, "more": 2}
        )
    )
    ((_, fields),) = signals_sent
    request = copy.copy(fields["request"])
    names = ("root_id", "parent_id", "group", "replaced_task_nesting", "stamped_headers", "stamps", "more")
    assert [getattr(request, name) for name in names] == ["id-7", "p", None, 0, ["mine"], {"mine": 1}, 2]
    assert not hasattr(request, "nothing")


def test_message_that_has_not_expired_is_accepted() -> None:
    rig = IntakeRig()
    assert rig.take(rig.rooms.leased(expires="2023-11-14T22:13:21+00:00")) is not None


def test_eta_known_to_the_broker_is_left_to_the_schedule() -> None:
    rig = IntakeRig()
    later = rig.rooms.clock.now() + 1
    request = rig.take(rig.rooms.leased(due=later, eta="2023-11-14T22:13:21+00:00"))
    assert request is not None
    assert request.eta == later


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich"])
def test_naive_eta_is_in_the_timezone_of_the_app(zone: str) -> None:
    rig = IntakeRig(timezone=zone)
    hours = {"UTC": 22, "Europe/Zurich": 23}[zone]
    assert rig.take(rig.rooms.leased(7, eta=f"2023-11-14T{hours}:13:21")) is None
    assert rig.settlement == Release(7, rig.rooms.clock.now() + 1)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"])
def test_times_at_the_ends_of_the_calendar_are_accepted(zone: str, text: str) -> None:
    rig = IntakeRig(timezone=zone)
    rig.take(rig.rooms.leased(7, expires=text))
    rig.take(rig.rooms.leased(8, eta=text))


# -- messages that are settled at once --


def test_eta_unknown_to_the_broker_is_set_by_a_release() -> None:
    rig = IntakeRig()
    assert rig.take(rig.rooms.leased(7, eta="2023-11-14T22:13:21+00:00")) is None
    assert rig.settlement == Release(7, rig.rooms.clock.now() + 1)
    assert rig.state.requests == {}
    rig.settled.clear()
    assert rig.take(rig.rooms.leased(8, eta="2023-11-14T22:13:20+00:00")) is not None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"headers": "no json"}, "InvalidTaskMessage"),
        ({"headers": "[]"}, "InvalidTaskMessage"),
        ({"headers": '{"task": "add"}'}, "InvalidTaskMessage"),
        ({"headers": '{"task": "add", "id": "x", "eta": "soon"}'}, "InvalidTaskMessage"),
        ({"properties": "{"}, "InvalidTaskMessage"),
        ({"headers": "{}", "body": b"\xff"}, "InvalidTaskMessage"),
    ],
)
def test_undecodable_message_is_dead_lettered_with_its_reason(
    changes: dict[str, Any], reason: str, signals_sent: SignalsSent
) -> None:
    rig = IntakeRig()
    assert rig.take(rig.rooms.leased(7)._replace(**changes)) is None
    assert isinstance(rig.settlement, DeadLetter)
    assert rig.settlement.tag == 7
    assert rig.settlement.reason.startswith(f"{reason}: ")
    assert [name for name, _ in signals_sent] == ["task_rejected"]
    assert rig.state.requests == {}


def test_unknown_task_is_released_with_growing_delays(signals_sent: SignalsSent) -> None:
    now = Rooms().clock.now()
    for requeued, delay in ((0, 30.0), (1, 120.0)):
        rig = IntakeRig()
        assert rig.take(rig.rooms.leased(7, "nobody.knows", requeued=requeued)) is None
        ahead = rig.rooms.app.conf.worker_eta_window  # messages are fetched this much earlier
        assert rig.settlement == Release(7, now + delay + ahead, requeued=True)
        assert rig.meta is None
    unknown = [(name, fields["name"], fields["id"]) for name, fields in signals_sent]
    assert unknown == [("task_unknown", "nobody.knows", "id-7")] * 2


def test_unknown_task_is_finally_dead_lettered_as_a_failure() -> None:
    rig = IntakeRig()
    rig.take(rig.rooms.leased(7, "ad", requeued=2))
    assert isinstance(rig.settlement, DeadLetter)
    assert "no task named 'ad' is registered; did you mean 'add'?" in rig.settlement.reason
    assert rig.meta is not None
    assert (rig.meta["status"], rig.meta["task_id"]) == ("FAILURE", "id-7")
    assert rig.meta["result"]["exc_type"] == "NotRegistered"


def test_revoked_task_is_acked_and_stored_as_revoked(signals_sent: SignalsSent) -> None:
    rig = IntakeRig()
    rig.state.revoke(Revocation("id-7", False, "SIGTERM"))
    assert rig.take(rig.rooms.leased(7)) is None
    assert rig.settlement == Ack(7)
    assert rig.meta is not None
    assert (rig.meta["status"], rig.meta["result"]["exc_type"]) == ("REVOKED", "TaskRevokedError")
    assert [(name, fields["expired"]) for name, fields in signals_sent] == [("task_revoked", False)]


def test_expired_task_is_acked_and_stored_as_revoked(signals_sent: SignalsSent) -> None:
    rig = IntakeRig()
    assert rig.take(rig.rooms.leased(7, expires="2023-11-14T22:13:20+00:00")) is None
    assert rig.settlement == Ack(7)
    assert rig.meta is not None
    assert (rig.meta["status"], rig.meta["result"]["exc_message"]) == ("REVOKED", ["expired"])
    assert [(name, fields["expired"]) for name, fields in signals_sent] == [("task_revoked", True)]


def test_message_with_too_many_deaths_is_dead_lettered_as_a_failure() -> None:
    rig = IntakeRig(task_max_deliveries=3)
    assert rig.take(rig.rooms.leased(7, deliveries=2)) is not None
    assert rig.take(rig.rooms.leased(8, deliveries=3)) is None
    assert isinstance(rig.settlement, DeadLetter)
    assert "3 deaths" in rig.settlement.reason
    assert rig.meta is not None
    assert (rig.meta["status"], rig.meta["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")


def test_texts_about_deaths_use_singular_and_plural(caplog: pytest.LogCaptureFixture) -> None:
    rig = IntakeRig(task_max_deliveries=2)
    rig.take(rig.rooms.leased(7, deliveries=1))
    assert "was involved in 1 death, so it runs separately from other tasks" in caplog.text
    rig = IntakeRig(task_max_deliveries=1)
    rig.take(rig.rooms.leased(8, deliveries=1))
    assert isinstance(rig.settlement, DeadLetter)
    assert "it was running at the death of its process or worker" in rig.settlement.reason
    rig = IntakeRig(task_max_deliveries=5)
    rig.take(rig.rooms.leased(9, deliveries=2))
    assert "was involved in 2 deaths, so" in caplog.text


def test_ignored_result_is_not_stored() -> None:
    rig = IntakeRig()
    rig.take(rig.rooms.leased(7, ignore_result=True, expires="2023-11-14T22:13:20+00:00"))
    assert (rig.settlement, rig.meta) == (Ack(7), None)


def test_stored_result_has_group_and_parent() -> None:
    rig = IntakeRig()
    rig.take(rig.rooms.leased(7, expires="2023-11-14T22:13:20+00:00", group="g", parent_id="p"))
    assert rig.meta is not None
    assert (rig.meta["group_id"], rig.meta["parent_id"]) == ("g", "p")


# -- redelivered messages --


def test_redelivered_message_is_left_to_its_current_run() -> None:
    rig = IntakeRig()
    request = rig.take(rig.rooms.leased(7), generation=1)
    assert request is not None
    assert rig.take(rig.rooms.leased(7, redelivered=True), generation=2) is None
    assert rig.settled == []
    assert request.generation == 2  # so that its ack is valid under the new lease
    assert rig.state.requests == {request.key: request}


def test_redelivered_message_of_a_finished_run_is_settled() -> None:
    rig = IntakeRig()
    ack = Ack(7, ("id-7", "SUCCESS", b"{}", None))
    rig.state.finished_elsewhere(rig.rooms.request(7), ack)
    assert rig.take(rig.rooms.leased(7, redelivered=True)) is None
    assert rig.settled == [ack]
    assert rig.take(rig.rooms.leased(7, redelivered=True)) is None, "the settlement came too late again"
    rig.state.settled_again(7)
    assert rig.take(rig.rooms.leased(7)) is not None


@pytest.mark.parametrize("changes", [{"id": "another"}, {"retries": 1}], ids=["other task", "next attempt"])
def test_reused_tag_is_recognised_as_another_message(changes: dict[str, Any]) -> None:
    """Recreated tables start again at tag 1."""
    rig = IntakeRig()
    old = rig.take(rig.rooms.leased(7), generation=1)
    new = rig.take(rig.rooms.leased(7, **changes), generation=2)
    assert old is not None
    assert new is not None
    assert (old.generation, new.generation) == (1, 2)
    rig.state.leave(old)
    assert list(rig.state.requests.values()) == [new]
    rig.state.finished_elsewhere(old, Ack(7))
    rig.state.leave(new)
    assert rig.take(rig.rooms.leased(7, **changes), generation=2) is not None
    assert rig.settled == []


@pytest.mark.parametrize("why", ["expired", "revoked", "deaths"])
def test_dropped_message_is_known_as_finished_only_when_that_is_confirmed(why: str) -> None:
    """If the lease was lost before, the message comes again, and must not be taken for a copy: its end would
    never be stored."""
    rig = IntakeRig(security_key="k" * 40, task_max_deliveries=3)
    expired = {"expires": "2023-11-14T22:13:20+00:00"} if why == "expired" else {}
    leased = rig.rooms.leased(7, deliveries=3 if why == "deaths" else 0, **expired)
    if why == "revoked":
        rig.state.revoke(Revocation("id-7", False, "SIGTERM"))
    assert rig.take(leased, generation=1) is None
    assert rig.take(leased, generation=2) is None
    first, second = rig.orders
    assert first.settlement == second.settlement
    assert first.settlement.row is not None
    assert [order.request and order.request.generation for order in rig.orders] == [1, 2]
    rig.state.leave(second.request, finished=True)  # as the listener does then
    assert rig.take(leased, generation=3) is None
    assert rig.orders[-1][:2] == (None, Ack(7))
