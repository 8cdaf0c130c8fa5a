"""The sender and the consumer of servers that reserve messages, over a server in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.testing import FakeClock
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.held.holdings import FULL_SECONDS
from qworker.transports.held.letters import HeldLetters
from qworker.transports.held.port import (
    DEAD,
    ConnectionGone,
    Count,
    Entry,
    NotAll,
    QueueGone,
    Received,
    Server,
    ServerQueue,
)
from qworker.transports.lease import Ack, Dead, Release
from tests.support.messages import envelope, ids

PUSH_SECONDS = 10.0


class Memory(ServerQueue):
    """What waits is in *texts*."""

    batch = 2

    def __init__(self, server: InMemory, name: str) -> None:
        self.server = server
        self.name = name
        self.texts: list[str] = []
        self.finished = 0

    def send(self, entries: Sequence[Entry]) -> None:
        taken = list(entries)
        try:
            self.server.asked()
        except NotAll as failure:
            taken, _ = failure.divide(entries)
            raise
        except Exception:
            taken = []
            raise
        finally:
            self.texts += [entry.text for entry in taken]

    def take(self, count: int, seconds: float) -> list[Received]:
        self.server.asked()
        taken, self.texts = self.texts[:count], self.texts[count:]
        return [
            Received(self, text, id=text, receipt=text, lease_seconds=60.0, redelivered=False)
            for text in taken
        ]

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        return []

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        self.texts += [message.receipt for message in messages]

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        self.server.asked()
        self.finished += len(messages)
        return []

    def count(self) -> Count:
        return Count(len(self.texts))

    def purge(self) -> int:
        return len(self.texts)


class InMemory(Server):
    """failures: what the next calls raise; None: nothing."""

    wait_seconds = None

    def __init__(self) -> None:
        super().__init__("memory://", 1.0)
        self.queues: dict[str, Memory] = {}
        self.failures: list[Exception | None] = []
        self.released = 0

    def asked(self) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure

    def connect(self) -> InMemory:
        return self

    def release(self) -> None:
        self.released += 1

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BrokerUnavailable(f"away: {error}") from error

    def declare(self, connection: Any, queue: str) -> Memory:
        return self.queues.setdefault(queue, Memory(self, queue))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> InMemory:
    return InMemory()


@pytest.fixture
def store(server: InMemory, clock: FakeClock) -> Iterator[HeldBroker]:
    store = held_broker("memory://", server, eta_limit=1, clock=clock)
    yield store
    store.close()


def push(store: HeldBroker, *names: str, due: float | None = None) -> None:
    store.sender.push([envelope(name, "q", due=due) for name in names], PUSH_SECONDS)


# -- the sender --


def test_what_was_begun_is_tried_again_by_the_clock_of_the_app(
    store: HeldBroker, server: InMemory, clock: FakeClock
) -> None:
    server.failures = [None, OSError("a"), NotAll([1], OSError("b"))]
    push(store, "1", "2", "3", "4")
    assert len(server.queues["q"].texts) == 4
    assert clock.slept == [0.1, 0.2]


def test_and_given_up_when_its_time_is_over(store: HeldBroker, server: InMemory, clock: FakeClock) -> None:
    server.failures = [None] + 99 * [OSError("gone")]
    with pytest.raises(BrokerUnavailable, match="it had accepted 2 of 4 messages"):
        push(store, "1", "2", "3", "4")
    assert 0.5 * PUSH_SECONDS < sum(clock.slept) <= PUSH_SECONDS


def test_what_was_not_begun_is_an_error_at_once(
    store: HeldBroker, server: InMemory, clock: FakeClock
) -> None:
    server.failures = [OSError("gone")]
    with pytest.raises(BrokerUnavailable):
        push(store, "1", "2", "3")
    assert (clock.slept, server.released) == ([], 1)


def test_a_connection_that_is_of_no_use_any_more_is_not_tried_again(
    store: HeldBroker, server: InMemory, clock: FakeClock
) -> None:
    server.failures = [None, ConnectionGone("gone")]
    with pytest.raises(BrokerUnavailable):
        push(store, "1", "2", "3")
    assert (clock.slept, server.released) == ([], 1)
    push(store, "4")
    assert len(server.queues["q"].texts) == 3


# -- letters --


def dead_letters(store: HeldBroker, *bodies: str) -> HeldLetters:
    letters = store.letters["dead"]
    letters.push([Dead(0, "q", "why", 1.0, 0, "{}", None, body.encode()) for body in bodies])
    return letters


def test_a_server_that_goes_while_letters_are_sent_again_keeps_few_that_were_sent(
    store: HeldBroker, server: InMemory
) -> None:
    letters = dead_letters(store, *"abcdef")
    # It reads four times, sends two and deletes them, twice, and sends one more.
    server.failures = [None] * 11 + 99 * [OSError("gone")]
    with pytest.raises(BrokerUnavailable, match="gone"):
        letters.retry()
    assert (len(server.queues["q"].texts), server.queues[DEAD].finished) == (5, 4)


class Again(Memory):
    """What is taken comes again at once, behind the others."""

    def take(self, count: int, seconds: float) -> list[Received]:
        found = super().take(count, seconds)
        self.texts += [message.receipt for message in found]
        for message in found:
            message.lease_seconds = 0.0
        return found


def test_letters_that_come_again_while_the_others_are_read_are_taken_once(
    store: HeldBroker, server: InMemory
) -> None:
    """As when reading takes longer than they are hidden."""
    server.queues[DEAD] = Again(server, DEAD)
    letters = dead_letters(store, *"abc")
    assert sorted(letter.body for letter in letters.newest()) == [b"a", b"b", b"c"]
    assert letters.retry() == len(server.queues["q"].texts) == 3


# -- the consumer --


def test_who_is_full_takes_more_when_the_clock_of_the_app_says_so(
    store: HeldBroker, clock: FakeClock
) -> None:
    store.consumer.register("w", ["q"], 1)
    push(store, "late", "later", due=clock.now() + 600.0)
    push(store, "now")
    assert store.consumer.lease(["q"], 9).messages == []
    assert store.consumer.lease(["q"], 9).messages == []
    clock.advance(FULL_SECONDS)
    assert ids(store.consumer.lease(["q"], 9).messages) == ["now"]


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ConnectionGone("gone"), "messages that were held go to others"),
        (QueueGone("gone"), "a queue was deleted"),
    ],
)
def test_what_is_held_is_lost_with_the_connection_or_the_queue(
    store: HeldBroker, server: InMemory, failure: Exception, words: str
) -> None:
    own = store.consumer.register("w", ["q"], 1)
    push(store, "a")
    (message,) = store.consumer.lease(["q"], 9).messages
    server.failures = [failure]
    with pytest.raises(LeaseLost, match=words):
        store.consumer.settle(own, [Ack(message.tag)])
    assert server.released == 1
    with pytest.raises(LeaseLost):
        store.consumer.lease(["q"], 9)


def test_it_is_not_lost_when_the_server_is_away_for_a_moment(store: HeldBroker, server: InMemory) -> None:
    own = store.consumer.register("w", ["q"], 1)
    push(store, "a", "b")
    first, second = store.consumer.lease(["q"], 9).messages
    server.failures = [OSError("away")]
    with pytest.raises(BrokerUnavailable):
        store.consumer.settle(own, [Ack(first.tag), Release(second.tag)])
    assert store.consumer.settle(own, [Ack(first.tag), Release(second.tag)]) == set()
    assert ids(store.consumer.lease(["q"], 9).messages) == ["b"]


def test_who_cannot_bind_its_queues_keeps_no_connection(
    store: HeldBroker, server: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: Any, queue: str) -> Memory:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(server, "declare", refuse)
        with pytest.raises(BrokerUnavailable):
            store.consumer.register("w", ["q"], 1)
    assert server.released == 1
    store.consumer.register("w", ["q"], 1)
    assert DEAD in server.queues  # said now, and not at the first letter
