"""Which signed messages a worker recognizes as copies."""

from __future__ import annotations

from qworker.components.receiving.replays import Replays
from qworker.components.request import receive
from tests.support.rooms import ACCEPT, Rooms

KEY = "a key that is long enough for the tests"


def test_redelivered_message_is_a_copy_only_after_it_finished() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    request = rooms.request(7)
    assert not replays.is_copy(request)
    replays.enter(request)
    assert not replays.is_copy(request)
    replays.leave(request, finished=False)  # returned to the broker, or dead-lettered
    assert not replays.is_copy(request)
    replays.enter(request)
    replays.leave(request, finished=True)
    assert replays.is_copy(request)


def test_same_message_with_another_tag_is_a_copy() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    request = rooms.request(7)
    copied = rooms.leased(7)._replace(tag=8, headers=request.leased.headers, body=request.leased.body)
    copy = receive(rooms.app, copied, 1, ACCEPT)
    replays.enter(request)
    assert replays.is_copy(copy)
    replays.leave(request, finished=False)
    assert not replays.is_copy(copy)


def test_identical_calls_are_not_copies() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    one, other = rooms.request(7, id="same"), rooms.request(8, id="same")
    replays.enter(one)
    replays.leave(one, finished=True)
    assert not replays.is_copy(other)


def test_oldest_messages_are_forgotten() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays(most=2)
    requests = rooms.requests(3)
    for request in requests:
        replays.enter(request)
        replays.leave(request, finished=True)
    assert [replays.is_copy(request) for request in requests] == [False, True, True]
