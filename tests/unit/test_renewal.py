"""Renewing the visibility timeout of messages that a worker holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qworker.transports.held.consumer import LOOK_SECONDS, Renewal
from qworker.transports.held.port import Count, NewMessage, Received, ServerQueue

LEASE_SECONDS = 30.0


class Queue(ServerQueue):
    """Records which messages are renewed. gone: ids of messages that other workers hold by now."""

    batch = 2

    def __init__(self, name: str) -> None:
        self.name = name
        self.renewed: list[list[str]] = []
        self.gone: set[str] = set()
        self.away = False
        self.away_after = -1

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        if self.away or len(self.renewed) == self.away_after:
            raise OSError("away")
        self.renewed.append([one.delivery_tag for one in messages])
        return [one for one in messages if one.delivery_tag in self.gone]

    def given(self, id: str, at: float) -> Received:
        message = Received(self, "{}", id=id, receipt=id, lease_seconds=LEASE_SECONDS, redelivered=False)
        message.hidden_from(at)
        return message

    def send(self, entries: Sequence[NewMessage]) -> None:
        raise NotImplementedError

    def take(self, count: int, seconds: float) -> list[Received]:
        raise NotImplementedError

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        raise NotImplementedError

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        raise NotImplementedError

    def count(self) -> Count:
        raise NotImplementedError

    def purge(self) -> int:
        raise NotImplementedError


class Monotonic:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Monotonic:
    return Monotonic()


def test_message_is_renewed_after_a_third_of_its_lease(clock: Monotonic) -> None:
    renewal, queue, other = Renewal(clock), Queue("q"), Queue("r")
    messages = [queue.given(id, 100.0) for id in "abc"] + [
        queue.given("late", 101.0),
        other.given("o", 100.0),
    ]
    clock.now = 109.9
    assert renewal.renew(messages) == set()
    assert queue.renewed == other.renewed == []
    clock.now = 110.5
    assert renewal.renew(messages) == set()
    assert (queue.renewed, other.renewed) == ([["a", "b"], ["c"]], [["o"]])
    clock.now = 111.0
    renewal.renew(messages)
    assert queue.renewed[2:] == [["late"]]
    clock.now = 120.4  # the leases of the others count from their renewal
    renewal.renew(messages)
    assert len(queue.renewed) == 3


def test_renewals_are_checked_every_look_seconds_only(clock: Monotonic) -> None:
    renewal, queue = Renewal(clock), Queue("q")
    renewal.renew([])
    clock.now += LOOK_SECONDS / 2
    renewal.renew([queue.given("a", 0.0)])
    assert queue.renewed == []
    clock.now += LOOK_SECONDS
    renewal.renew([queue.given("a", 0.0)])
    assert queue.renewed == [["a"]]


def test_renew_returns_messages_held_by_others(clock: Monotonic) -> None:
    renewal, queue = Renewal(clock), Queue("q")
    queue.gone = {"b", "c"}
    messages = [queue.given(id, 0.0) for id in "abc"]
    assert renewal.renew(messages) == set(map(id, messages[1:]))


def test_failed_renewal_is_retried(clock: Monotonic) -> None:
    renewal, queue = Renewal(clock), Queue("q")
    messages = [queue.given("a", 0.0)]
    queue.away = True
    with pytest.raises(OSError, match="away"):
        renewal.renew(messages)
    queue.away = False
    clock.now += LOOK_SECONDS
    renewal.renew(messages)
    assert queue.renewed == [["a"]]


def test_lost_messages_are_reported_after_a_partly_failed_renewal(clock: Monotonic) -> None:
    """Until then it does not count as renewed: a server may not check who acknowledges a message."""
    renewal, queue = Renewal(clock), Queue("q")
    queue.gone, queue.away_after = {"a"}, 1
    messages = [queue.given(id, 0.0) for id in "abc"]
    with pytest.raises(OSError, match="away"):
        renewal.renew(messages)
    assert messages[0].expires == LEASE_SECONDS
    queue.away_after = -1
    clock.now += LOOK_SECONDS
    assert renewal.renew(messages) == {id(messages[0])}
    assert queue.renewed == [["a", "b"], ["a", "c"]]


def test_message_that_may_have_been_returned_is_not_renewed(clock: Monotonic) -> None:
    """The renewal would extend the lease of whichever worker holds it by then."""
    renewal, queue = Renewal(clock), Queue("q")
    messages = [queue.given(id, 0.0) for id in "ab"]
    messages[0].may_be_back(clock.now + 600.0)
    renewal.renew(messages)
    assert queue.renewed == [["b"]]
