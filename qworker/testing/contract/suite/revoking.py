"""Revocations, and numbers that are never used twice.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

from qworker.errors import LeaseLost
from qworker.message.protocol import TaskMessage, encode, receive
from qworker.message.signing import Signer
from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.parts import revoke, revoked_since
from qworker.testing.contract.place import Place
from qworker.testing.contract.waiting import until
from qworker.transports.capabilities import FANOUT
from qworker.transports.lease import Ack, Broker, Envelope, Revocation


@asks(FANOUT)
def test_every_consumer_receives_revocations_once(store: Broker, open_: Open) -> None:
    listening = open_(registered=True)
    cursor, nothing = revoked_since(listening, 0)
    assert nothing == []
    revoke(store, ["a", "b"])
    revoke(store, ["c"], terminate=True, signal="SIGKILL")
    expected = [
        Revocation("a", False, "SIGTERM"),
        Revocation("b", False, "SIGTERM"),
        Revocation("c", True, "SIGKILL"),
    ]
    cursor, found = revoked_since(listening, cursor)
    assert found == expected
    assert revoked_since(listening, cursor) == (cursor, [])
    assert revoked_since(open_(registered=True), 0)[1] == expected


@asks(FANOUT)
def test_revocation_keeps_its_signature(store: Broker) -> None:
    signer = Signer(["a key that is long enough for tests"])
    text = f"SIGTERM {signer.sign_order('revoke', 'a', True, 'SIGTERM')}"
    revoke(store, ["a"], terminate=True, signal=text)
    assert revoked_since(store, 0)[1] == [Revocation("a", True, text)]


def test_signed_messages_are_delivered_unchanged(store: Broker) -> None:
    signer = Signer(["a key that is long enough for tests"])
    own = {
        "tenant": "é", "text": "\ud800\x00\n", "nothing": None, "yes": True, "int": -(2**53), "float": 0.1,
        "large": 1e300,
        "list": [1, [2, None, "x"], {"a": 1.5}], "table": {"b": {}, "a": [], "": "no name"}, "tuple": (1, 2),
        "odd, name: é": 1, "time": datetime(2030, 1, 2, tzinfo=UTC), "number": Decimal("1.50"),
        "bytes": b"\xff",
    }  # fmt: skip
    call = TaskMessage(
        "proj.add", "id-1", (1,), headers=own, eta="2030-01-01T00:00:00+00:00", stamps={"team": ["a"]},
        stamped_headers=["team"], timelimit=(10, 2.5), reply_to="q", group="g", group_index=3,
        compression="gzip",
    )  # fmt: skip
    for given in (call, replace(call, headers={"tenant": "a"}), replace(call, id="id-3", headers={})):
        encoded = encode(given, signer)
        store.sender.push([Envelope("q", encoded.headers, encoded.properties, encoded.body)])
        (leased,) = until(lambda: store.consumer.lease(["q"], 10).messages)
        headers, _, _ = receive(leased.headers, leased.properties, leased.body, frozenset({"json"}), signer)
        assert headers["tenant"] if given.headers else True


@asks(FANOUT)
def test_revocations_expire(open_: Open, clock: FakeClock) -> None:
    store = open_(registered=True, revoke_expires=60.0)
    revoke(store, ["old"])
    clock.advance(61)
    revoke(store, ["new"])
    cursor, found = revoked_since(store, 0)
    assert [revocation.task_id for revocation in found] == ["new"]
    assert store.consumer.sweep("dead", 1e9, 1000) == 1
    revoke(store, ["newer"])
    assert [revocation.task_id for revocation in revoked_since(store, cursor)[1]] == ["newer"]


def next_revocations(store: Broker, cursor: int) -> tuple[int, list[Revocation]]:
    """Return revoked_since(), once it has some: a server may announce other events before."""
    cursor, found = revoked_since(store, cursor)
    while not found and store.consumer.wait(30):
        cursor, found = revoked_since(store, cursor)
    return cursor, found


@asks(FANOUT)
def test_revocation_wakes_waiting_consumer(store: Broker, open_: Open) -> None:
    store.consumer.wait(0)
    revoke(open_(), ["a"])
    assert store.consumer.wait(30)
    assert [revocation.task_id for revocation in revoked_since(store, 0)[1]] == ["a"]


@asks(FANOUT)
def test_revocation_pushed_with_messages_is_received_next(store: Broker, open_: Open) -> None:
    client = open_()
    store.consumer.wait(0)
    cursor, _ = revoked_since(store, 0)
    for name in ("a", "b"):
        client.sender.push([message(name)])
        revoke(client, [name])
        client.sender.push([message(name)])
        assert store.consumer.wait(30)
        cursor, found = next_revocations(store, cursor)
        assert [revocation.task_id for revocation in found] == [name]


@asks(FANOUT)
def test_revocations_between_messages_are_received(store: Broker, open_: Open) -> None:
    client = open_()
    cursor, _ = revoked_since(store, 0)
    for number in range(5):
        client.sender.push([message("a")])
        assert store.consumer.wait(30)
        assert revoked_since(store, cursor) == (cursor, [])
        revoke(client, [str(number)])
        assert store.consumer.wait(30)
        cursor, found = next_revocations(store, cursor)
        assert [revocation.task_id for revocation in found] == [str(number)]


@asks(FANOUT)
def test_lease_does_not_hide_a_new_revocation(store: Broker, open_: Open) -> None:
    client, cursor = open_(), 0
    for name in ("a", "b"):
        revoke(client, [name])
        until(partial(reports_new_revocation, store, cursor))
        cursor, found = next_revocations(store, cursor)
        assert [revocation.task_id for revocation in found] == [name]
        assert store.consumer.lease(["q"], 1).last_revocation in (None, 0, cursor)


def reports_new_revocation(store: Broker, cursor: int) -> bool:
    return store.consumer.lease(["q"], 1).last_revocation not in (0, cursor)


@asks(FANOUT)
def test_numbers_are_not_reused_after_data_loss(place: Place, open_: Open, clock: FakeClock) -> None:
    """After FLUSHALL, TRUNCATE, an old backup or a recreated file, a reused generation would belong to
    another consumer, and a worker that waits for higher numbers would miss revocations."""
    store, client = open_(registered=True), open_()
    old = {generation(store) for _ in range(3)}
    client.sender.push([message("lost")])
    (lost,) = take(store)
    revoke(client, ["a", "b", "c"])
    cursor, found = revoked_since(store, 0)
    while len(found) < 3 and store.consumer.wait(30):
        cursor, more = revoked_since(store, cursor)
        found += more
    place.lose()
    clock.advance(1.0)
    with suppress(LeaseLost):
        for _ in range(30):  # the embedded broker checks its file every tenth of a second
            store.consumer.extend()
            time.sleep(0.01)
    fresh = open_()
    new = {generation(fresh), generation(store)}
    fresh.consumer.deregister()
    assert len(old | new) == 5
    client = open_()
    client.sender.push([message("new")])
    assert names(take(store)) == ["new"]
    assert store.consumer.settle(max(old), [Ack(lost.tag)]) == {lost.tag}
    revoke(client, ["d"])
    _, found = next_revocations(store, cursor)
    assert [revocation.task_id for revocation in found] == ["d"]


def test_tags_are_not_reused_in_any_order_of_acks(store: Broker) -> None:
    """Otherwise a late ack of the first would delete the second, unrun."""
    own = generation(store)
    store.sender.push([message(name) for name in "abcdef"])
    first = take(store)
    seen = {leased.tag for leased in first}
    for leased in (first[4], first[5], first[1], first[0], first[3], first[2]):
        assert store.consumer.settle(own, [Ack(leased.tag)]) == set()
    store.sender.push([message(name) for name in "ghij"])
    assert not seen & {leased.tag for leased in take(store)}
