"""What the listener does with one message."""

from __future__ import annotations

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


class Desk:
    """A Intake, and what it settles."""

    def __init__(self, **settings: Any) -> None:
        self.rooms = Rooms(task_unknown_delays=(30.0, 120.0), **settings)
        self.state = WorkerState(replays=Replays() if "security_key" in settings else None)
        self.mailbox: Mailbox[SettlementOrder] = Mailbox(lambda: None)
        settler = Settler(self.rooms.app, ReadyQueue(), self.mailbox)
        self.settled: list[Settlement] = []
        self.intake = Intake(self.rooms.app, self.state, settler.settle, settler.refuse)

    def take(self, leased: Leased, generation: int = 1) -> Request | None:
        request = self.intake.take(leased, generation, self.rooms.clock.now())
        for order in self.mailbox.take():
            assert order.request is None
            assert order.settlement is not None
            self.settled.append(order.settlement)
        return request

    @property
    def settlement(self) -> Settlement:
        """The only one, without its row."""
        (settlement,) = self.settled
        return settlement._replace(row=None) if isinstance(settlement, Ack | DeadLetter) else settlement

    @property
    def meta(self) -> dict[str, Any] | None:
        """What is in that row."""
        (settlement,) = self.settled
        row = None if isinstance(settlement, Release) else settlement.row
        return None if row is None else dict(self.rooms.app.backend.decode(row[2]))


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What the signals said, in order."""
    said: list[tuple[str, dict[str, Any]]] = []
    observed = ("task_received", "task_revoked", "task_unknown", "task_rejected")
    receivers = []
    for name in observed:

        def receiver(said_by: str = name, **fields: Any) -> None:
            said.append((said_by, fields))

        getattr(signals, name).connect(receiver, weak=False)
        receivers.append((name, receiver))
    yield said
    for name, receiver in receivers:
        getattr(signals, name).disconnect(receiver)


Heard = list[tuple[str, dict[str, Any]]]


# -- what runs --


def test_a_good_message_becomes_a_request_in_the_ledger(
    heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk()
    with caplog.at_level(logging.DEBUG):
        request = desk.take(desk.rooms.leased(7, "add", 1, 2), generation=3)
    assert request is not None
    assert (request.tag, request.id, request.name, request.generation) == (7, "id-7", "add", 3)
    assert desk.state.requests == {request.key: request}
    assert desk.settled == []
    assert [(name, fields["request"]) for name, fields in heard] == [("task_received", request)]
    assert "Task add[id-7] received" in caplog.text


def test_receivers_of_signals_find_what_celerys_requests_have(heard: Heard) -> None:
    desk = Desk()
    desk.take(
        desk.rooms.leased(
            7, parent_id="p", stamped_headers=["mine"], stamps={"mine": 1}, headers={"mine": 1, "more": 2}
        )
    )
    ((_, fields),) = heard
    request = fields["request"]
    names = ("root_id", "parent_id", "group", "replaced_task_nesting", "stamped_headers", "stamps", "more")
    assert [getattr(request, name) for name in names] == ["id-7", "p", None, 0, ["mine"], {"mine": 1}, 2]
    assert not hasattr(request, "nothing")


def test_one_that_expires_later_runs() -> None:
    desk = Desk()
    assert desk.take(desk.rooms.leased(expires="2023-11-14T22:13:21+00:00")) is not None


def test_an_eta_that_the_broker_knows_of_is_the_schedules_affair() -> None:
    desk = Desk()
    later = desk.rooms.clock.now() + 1
    request = desk.take(desk.rooms.leased(due=later, eta="2023-11-14T22:13:21+00:00"))
    assert request is not None
    assert request.eta == later


@pytest.mark.parametrize("zone", ["UTC", "Europe/Zurich"])
def test_a_naive_eta_of_a_celery_producer_is_in_the_zone_of_the_app(zone: str) -> None:
    desk = Desk(timezone=zone)
    hours = {"UTC": 22, "Europe/Zurich": 23}[zone]
    assert desk.take(desk.rooms.leased(7, eta=f"2023-11-14T{hours}:13:21")) is None
    assert desk.settlement == Release(7, desk.rooms.clock.now() + 1)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00", "9999-12-31T23:59:59"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago", "UTC"])
def test_a_time_at_the_ends_of_time_stops_nobody(zone: str, text: str) -> None:
    desk = Desk(timezone=zone)
    desk.take(desk.rooms.leased(7, expires=text))
    desk.take(desk.rooms.leased(8, eta=text))


# -- what does not --


def test_an_eta_that_the_broker_does_not_know_of_is_told_to_it() -> None:
    desk = Desk()
    assert desk.take(desk.rooms.leased(7, eta="2023-11-14T22:13:21+00:00")) is None
    assert desk.settlement == Release(7, desk.rooms.clock.now() + 1)
    assert desk.state.requests == {}
    desk.settled.clear()
    assert desk.take(desk.rooms.leased(8, eta="2023-11-14T22:13:20+00:00")) is not None


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
def test_what_cannot_be_read_is_a_dead_letter_with_the_reason(
    changes: dict[str, Any], reason: str, heard: Heard
) -> None:
    desk = Desk()
    assert desk.take(desk.rooms.leased(7)._replace(**changes)) is None
    assert isinstance(desk.settlement, DeadLetter)
    assert desk.settlement.tag == 7
    assert desk.settlement.reason.startswith(f"{reason}: ")
    assert [name for name, _ in heard] == ["task_rejected"]
    assert desk.state.requests == {}


def test_an_unknown_task_is_put_back_longer_each_time(heard: Heard) -> None:
    now = Rooms().clock.now()
    for requeued, delay in ((0, 30.0), (1, 120.0)):
        desk = Desk()
        assert desk.take(desk.rooms.leased(7, "nobody.knows", requeued=requeued)) is None
        ahead = desk.rooms.app.conf.worker_eta_window  # so much earlier it would be fetched
        assert desk.settlement == Release(7, now + delay + ahead, requeued=True)
        assert desk.meta is None
    told = [(name, fields["name"], fields["id"]) for name, fields in heard]
    assert told == [("task_unknown", "nobody.knows", "id-7")] * 2


def test_an_unknown_task_that_stays_unknown_is_a_dead_letter_and_a_failure() -> None:
    desk = Desk()
    desk.take(desk.rooms.leased(7, "ad", requeued=2))
    assert isinstance(desk.settlement, DeadLetter)
    assert "no task named 'ad' is registered; did you mean 'add'?" in desk.settlement.reason
    assert desk.meta is not None
    assert (desk.meta["status"], desk.meta["task_id"]) == ("FAILURE", "id-7")
    assert desk.meta["result"]["exc_type"] == "NotRegistered"


def test_a_revoked_task_is_acked_and_stored_as_revoked(heard: Heard) -> None:
    desk = Desk()
    desk.state.revoke(Revocation("id-7", False, "SIGTERM"))
    assert desk.take(desk.rooms.leased(7)) is None
    assert desk.settlement == Ack(7)
    assert desk.meta is not None
    assert (desk.meta["status"], desk.meta["result"]["exc_type"]) == ("REVOKED", "TaskRevokedError")
    assert [(name, fields["expired"]) for name, fields in heard] == [("task_revoked", False)]


def test_an_expired_task_is_acked_and_stored_as_revoked(heard: Heard) -> None:
    desk = Desk()
    assert desk.take(desk.rooms.leased(7, expires="2023-11-14T22:13:20+00:00")) is None
    assert desk.settlement == Ack(7)
    assert desk.meta is not None
    assert (desk.meta["status"], desk.meta["result"]["exc_message"]) == ("REVOKED", ["expired"])
    assert [(name, fields["expired"]) for name, fields in heard] == [("task_revoked", True)]


def test_a_message_that_met_with_too_many_deaths_is_a_dead_letter_and_a_failure() -> None:
    desk = Desk(task_max_deliveries=3)
    assert desk.take(desk.rooms.leased(7, deliveries=2)) is not None
    assert desk.take(desk.rooms.leased(8, deliveries=3)) is None
    assert isinstance(desk.settlement, DeadLetter)
    assert "3 deaths" in desk.settlement.reason
    assert desk.meta is not None
    assert (desk.meta["status"], desk.meta["result"]["exc_type"]) == ("FAILURE", "WorkerLostError")


def test_one_death_is_no_deaths(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(task_max_deliveries=2)
    desk.take(desk.rooms.leased(7, deliveries=1))
    assert "was involved in 1 death, so it runs separately from other tasks" in caplog.text
    desk = Desk(task_max_deliveries=1)
    desk.take(desk.rooms.leased(8, deliveries=1))
    assert isinstance(desk.settlement, DeadLetter)
    assert "it was running at the death of its process or worker" in desk.settlement.reason
    desk = Desk(task_max_deliveries=5)
    desk.take(desk.rooms.leased(9, deliveries=2))
    assert "was involved in 2 deaths, so" in caplog.text


def test_a_result_that_is_ignored_is_not_stored() -> None:
    desk = Desk()
    desk.take(desk.rooms.leased(7, ignore_result=True, expires="2023-11-14T22:13:20+00:00"))
    assert (desk.settlement, desk.meta) == (Ack(7), None)


def test_what_is_stored_names_its_group_and_parent() -> None:
    desk = Desk()
    desk.take(desk.rooms.leased(7, expires="2023-11-14T22:13:20+00:00", group="g", parent_id="p"))
    assert desk.meta is not None
    assert (desk.meta["group_id"], desk.meta["parent_id"]) == ("g", "p")


# -- what was here before --


def test_one_that_is_still_running_here_is_left_to_that_run() -> None:
    desk = Desk()
    request = desk.take(desk.rooms.leased(7), generation=1)
    assert request is not None
    assert desk.take(desk.rooms.leased(7, redelivered=True), generation=2) is None
    assert desk.settled == []
    assert request.generation == 2  # so that its ack holds under the new lease
    assert desk.state.requests == {request.key: request}


def test_one_that_ended_here_under_a_lost_lease_is_settled_as_it_ended() -> None:
    desk = Desk()
    ack = Ack(7, ("id-7", "SUCCESS", b"{}", None))
    desk.state.finished_elsewhere(desk.rooms.request(7), ack)
    assert desk.take(desk.rooms.leased(7, redelivered=True)) is None
    assert desk.settled == [ack]
    assert desk.take(desk.rooms.leased(7)) is not None  # once: the next one of that tag is another matter


@pytest.mark.parametrize("changes", [{"id": "another"}, {"retries": 1}], ids=["other task", "next attempt"])
def test_a_tag_that_comes_again_in_a_new_store_is_another_message(changes: dict[str, Any]) -> None:
    """Tables that are made anew count from one again."""
    desk = Desk()
    old = desk.take(desk.rooms.leased(7), generation=1)
    new = desk.take(desk.rooms.leased(7, **changes), generation=2)
    assert old is not None
    assert new is not None
    assert (old.generation, new.generation) == (1, 2)
    desk.state.leave(old)
    assert list(desk.state.requests.values()) == [new]
    desk.state.finished_elsewhere(old, Ack(7))
    desk.state.leave(new)
    assert desk.take(desk.rooms.leased(7, **changes), generation=2) is not None
    assert desk.settled == []
