"""The worker's ledger."""

from __future__ import annotations

from qworker.components.receiving.ledger import UNREAD_SECONDS, WorkerState
from qworker.transports.lease import Ack, Revocation
from tests.support.rooms import Rooms


def test_request_is_in_the_ledger_from_receipt_to_settlement() -> None:
    state, request = WorkerState(), Rooms().request(7)
    state.enter(request)
    assert state.requests == {request.key: request}
    state.leave(request)
    state.leave(request)  # has no further effect
    assert state.requests == {}


def test_revocation_applies_to_all_requests_of_its_task() -> None:
    rooms, state = Rooms(), WorkerState()
    one, two, other = rooms.request(1, id="a"), rooms.request(2, id="a"), rooms.request(3, id="b")
    for request in (one, two, other):
        state.enter(request)
    revocation = Revocation("a", True, "SIGKILL")
    assert state.revoke(revocation) == [one, two]
    assert (one.revocation, two.revocation, other.revocation) == (revocation, revocation, None)
    assert state.revoked == {"a": revocation}


def test_revocation_of_an_unknown_task_is_remembered() -> None:
    state = WorkerState()
    assert state.revoke(Revocation("a", False, "SIGTERM")) == []
    assert "a" in state.revoked


def test_oldest_revocations_are_forgotten_first() -> None:
    state = WorkerState(max_revoked=2)
    for name in ("a", "b", "c"):
        state.revoke(Revocation(name, False, "SIGTERM"))
    assert list(state.revoked) == ["b", "c"]


def test_repeated_revocation_counts_as_new() -> None:
    state = WorkerState(max_revoked=2)
    for name in ("a", "b", "a", "c"):
        state.revoke(Revocation(name, False, "SIGTERM"))
    assert list(state.revoked) == ["a", "c"]


def test_number_of_remembered_ends_after_lease_loss_is_limited() -> None:
    state, rooms = WorkerState(), Rooms()
    requests = [rooms.request(tag) for tag in range(10_001)]
    for request in requests:
        state.finished_elsewhere(request, Ack(request.tag))
    assert [state.settlement_of(request) for request in (requests[0], requests[1], requests[-1])] == [
        None,
        Ack(requests[1].tag),
        Ack(requests[-1].tag),
    ]
    state.settled_again(requests[1].tag)
    assert state.settlement_of(requests[1]) is None


def test_info_has_plain_values() -> None:
    state = WorkerState()
    state.enter(Rooms().request(1))
    state.totals["finished"] += 3
    assert state.info() == {"reserved": 1, "revoked": 0, "total": {"finished": 3}}


def test_undecodable_message_is_recognised_on_redelivery() -> None:
    rooms, state = Rooms(), WorkerState()
    state.sent_unread(rooms.request(1, id="a"), 0.0)
    assert not state.was_unread(rooms.request(2, "add", 5, id="a")), "another body"
    assert state.was_unread(rooms.request(2, id="a"))
    assert state.was_unread(rooms.request(3, id="a")), "it was given back to the broker meanwhile"
    state.kept(rooms.request(3, id="a"))
    assert not state.was_unread(rooms.request(4, id="a"))


def test_undecodable_messages_are_forgotten_by_number_and_age() -> None:
    rooms, state = Rooms(), WorkerState(max_unread=500)
    one, last = rooms.requests(2)
    for number in range(500):
        one.key = 1, f"other-{number}", 0
        state.sent_unread(one, 0.0)
    state.sent_unread(last, 0.0)
    assert not state.was_unread(last)
    state.sent_unread(last, UNREAD_SECONDS + 1)
    assert [state.was_unread(request) for request in (one, last)] == [False, True]


def test_message_that_is_unreadable_again_keeps_no_older_ones() -> None:
    rooms, state = Rooms(), WorkerState()
    again, old, new = rooms.requests(3)
    for request, now in ((again, 0.0), (old, 0.0), (again, UNREAD_SECONDS), (new, UNREAD_SECONDS + 1)):
        state.sent_unread(request, now)
    assert [state.was_unread(request) for request in (again, old, new)] == [True, False, True]
