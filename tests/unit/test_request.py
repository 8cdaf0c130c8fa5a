"""Requests: made from messages, and described for inspection."""

from __future__ import annotations

from qworker.components.request import receive
from qworker.message.marks import FAILED
from tests.support.rooms import ACCEPT, Rooms


def test_request_has_limits_and_times_of_its_message() -> None:
    rooms = Rooms()
    one = rooms.request(
        1, eta="2023-11-14T22:13:21+00:00", expires="2023-11-14T22:13:22+00:00", timelimit=(9, 8)
    )
    assert (one.eta, one.expires) == (rooms.clock.now() + 1, rooms.clock.now() + 2)
    assert (one.time_limit, one.soft_time_limit) == (9, 8)
    assert not one.is_async
    assert one.acks_late
    assert rooms.request(1, "nap").is_async
    assert not rooms.request(1, "once").acks_late


def test_body_of_a_failed_join_does_not_expire() -> None:
    rooms = Rooms()
    late = "2023-11-14T22:13:22+00:00"
    body = rooms.request(1, expires=late, headers={FAILED: "a member has failed"})
    assert body.expires is None
    errback = rooms.request(2, expires=late, headers={FAILED: {"id": "what it is told of"}})
    assert errback.expires == rooms.clock.now() + 2


def test_limits_of_the_message_override_those_of_the_task() -> None:
    rooms = Rooms()
    rooms.app.task(name="limited", time_limit=30, soft_time_limit=20)(lambda: None)
    plain = rooms.request(1, "limited")
    assert (plain.time_limit, plain.soft_time_limit) == (30, 20)
    own = rooms.request(1, "limited", timelimit=(3, 2))
    assert (own.time_limit, own.soft_time_limit) == (3, 2)


def test_protocol_1_message_is_converted_to_protocol_2() -> None:
    rooms = Rooms()
    body = b'{"task": "add", "id": "old", "args": [1, 2], "kwargs": {}}'
    old = rooms.leased(1)._replace(headers="{}", properties='{"content_type": "application/json"}', body=body)
    one = receive(rooms.app, old, 1, ACCEPT)
    assert (one.id, one.name) == ("old", "add")
    again = receive(rooms.app, one.leased, 1, ACCEPT)  # the child gets a valid message
    assert (again.id, again.name) == ("old", "add")
    assert again.leased.body.startswith(b"[[1,")


def test_describe_returns_plain_data() -> None:
    one = Rooms().request(5, "add", 1, 2, queue="mail", priority=3, redelivered=True)
    one.pid, one.acked = 77, True
    assert one.describe() == {
        "id": "id-5",
        "name": "add",
        "args": "(1, 2)",
        "kwargs": "{}",
        "hostname": one.headers["origin"],
        "acknowledged": True,
        "worker_pid": 77,
        "delivery_info": {"exchange": "", "routing_key": "mail", "priority": 3, "redelivered": True},
    }


def test_body_is_not_decoded_by_the_worker() -> None:
    """The threads of the worker decode only headers, so any body is received."""
    rooms = Rooms()
    one = receive(rooms.app, rooms.leased(1)._replace(body=b"\xff not even text"), 1, ACCEPT)
    assert one.leased.body == b"\xff not even text"
