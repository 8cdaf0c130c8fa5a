"""Peeking: reading messages without leasing them.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.parts import peek
from qworker.transports.capabilities import PEEK
from qworker.transports.lease import Ack, Broker, MessageState, Peeked, Release

MESSAGE_STATES: tuple[MessageState, ...] = ("ready", "delayed", "leased")


def seen(store: Broker, queue: str = "q", limit: int = 100) -> list[list[str]]:
    """Return the names of ready, delayed and leased messages in *queue*."""
    return [[each.headers for each in peek(store, queue, how, limit)] for how in MESSAGE_STATES]


@asks(PEEK)
def test_peek_shows_the_state_of_each_message(store: Broker, open_: Open, clock: FakeClock) -> None:
    own = generation(store)
    sent = clock.now()
    store.sender.push([message("held", priority=9), message("later", due=sent + 60)])
    (held,) = take(store)
    clock.advance(5)
    store.sender.push([message("low"), message("high", priority=9), message("soon", due=sent + 30)])
    store.sender.push([message("elsewhere", "r")])
    watching = open_()
    assert seen(watching) == [["high", "low"], ["soon", "later"], ["held"]]
    assert seen(watching, "r") == [["elsewhere"], [], []]
    assert seen(watching, "nothing") == [[], [], []]
    (first, _), (soon, _), (leased,) = (peek(watching, "q", how, 100) for how in MESSAGE_STATES)
    assert first == Peeked("q", "ready", 9, None, sent + 5, 0, "high")
    assert soon == Peeked("q", "delayed", 0, sent + 30, sent + 5, 0, "soon")
    assert leased == Peeked("q", "leased", 9, None, sent, 0, "held", "again@test")
    assert store.consumer.settle(own, [Ack(held.tag)]) == set()
    assert seen(watching) == [["high", "low"], ["soon", "later"], []]


@asks(PEEK)
def test_peek_changes_nothing(store: Broker, open_: Open, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("held")])
    (held,) = take(store)
    store.sender.push([message("a"), message("b"), message("later", due=clock.now() + 60)])
    watching = open_()
    before = store.admin.queues()
    for _ in range(3):
        assert seen(watching) == [["a", "b"], ["later"], ["held"]]
    watching.close()
    assert store.admin.queues() == before
    assert store.consumer.settle(own, [Ack(held.tag)]) == set()  # the lease is unaffected
    clock.advance(60)
    assert [(each.headers, each.deliveries, each.redelivered) for each in take(store)] == [
        ("a", 0, False), ("b", 0, False), ("later", 0, False),
    ]  # fmt: skip


@asks(PEEK)
def test_peek_respects_the_limit_and_shows_deliveries(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message(name, priority=5) for name in "abc"] + [message("urgent", priority=9)])
    assert seen(store, limit=2) == [["urgent", "a"], [], []]
    assert seen(store, limit=0) == [[], [], []]
    (urgent,) = take(store, limit=1)
    store.consumer.settle(own, [Release(urgent.tag, counted=True)])
    assert [each.deliveries for each in peek(store, "q", "ready", 2)] == [1, 0]
    assert len(take(store)) == 4
    assert [len(found) for found in seen(store, limit=3)] == [0, 0, 3]


@asks(PEEK)
def test_large_messages_can_be_peeked(store: Broker) -> None:
    headers = ['{"task":"t","argsrepr":"' + "é]}" * 3000 + '"}', '{"x":"\\", \\"body\\": \\""}']
    for text in headers:
        store.sender.push([message(text, body=b"\xff" * 3_000_000), message(text, body=b"")])
    assert seen(store) == [[text for text in headers for _ in range(2)], [], []]
    assert names(take(store)) == [text for text in headers for _ in range(2)]
