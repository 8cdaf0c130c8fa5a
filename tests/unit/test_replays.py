"""Which signed messages a worker knows to be copies."""

from __future__ import annotations

from qworker.components.receiving.replays import Replays
from qworker.components.request import receive
from tests.support.rooms import ACCEPT, Rooms

KEY = "a key that is long enough for the tests"


def test_a_message_delivered_again_is_no_copy_until_it_is_finished() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    request = rooms.request(7)
    assert not replays.is_copy(request)
    replays.enter(request)
    assert not replays.is_copy(request)
    replays.leave(request, finished=False)  # back to the broker, or to the dead letters
    assert not replays.is_copy(request)
    replays.enter(request)
    replays.leave(request, finished=True)
    assert replays.is_copy(request)


def test_the_same_message_under_another_tag_is_a_copy_of_what_is_held() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    request = rooms.request(7)
    copied = rooms.leased(7)._replace(tag=8, headers=request.leased.headers, body=request.leased.body)
    copy = receive(rooms.app, copied, 1, ACCEPT)
    replays.enter(request)
    assert replays.is_copy(copy)
    replays.leave(request, finished=False)
    assert not replays.is_copy(copy)


def test_calls_alike_are_not_copies_of_each_other() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays()
    one, other = rooms.request(7, id="same"), rooms.request(8, id="same")
    replays.enter(one)
    replays.leave(one, finished=True)
    assert not replays.is_copy(other)


def test_the_oldest_are_forgotten() -> None:
    rooms, replays = Rooms(security_key=[KEY]), Replays(most=2)
    requests = rooms.requests(3)
    for request in requests:
        replays.enter(request)
        replays.leave(request, finished=True)
    assert [replays.is_copy(request) for request in requests] == [False, True, True]
