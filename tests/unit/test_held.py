"""The sender and the consumer of servers that reserve messages, over a server in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from qworker.errors import BrokerUnavailable, LeaseLost
from qworker.testing import FakeClock
from qworker.transports.held.broker import HeldBroker, HeldLetters
from qworker.transports.held.holdings import FULL_SECONDS
from qworker.transports.held.port import (
    DEAD,
    ConnectionGone,
    Count,
    NewMessage,
    NotAll,
    QueueGone,
    Received,
    Server,
    ServerQueue,
)
from qworker.transports.lease import Ack, Dead, Release
from tests.support.messages import envelope, ids

PUSH_SECONDS = 10.0


class MemoryQueue(ServerQueue):
    """Keeps waiting messages in *texts*."""

    batch = 2

    def __init__(self, server: MemoryServer, name: str) -> None:
        self.server = server
        self.name = name
        self.texts: list[str] = []
        self.finished = 0
        self.late: Callable[[], float] | None = None
        """Returns when the leases of finished messages ended, which others have now; None: they are ours."""

    def send(self, entries: Sequence[NewMessage]) -> None:
        taken = list(entries)
        try:
            self.server.raise_failure()
        except NotAll as failure:
            taken, _ = failure.divide(entries)
            raise
        except Exception:
            taken = []
            raise
        finally:
            self.texts += [entry.text for entry in taken]

    def take(self, count: int, seconds: float) -> list[Received]:
        self.server.raise_failure()
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
        self.server.raise_failure()
        self.finished += len(messages)
        if self.late is None:
            return []
        for message in messages:
            message.expires = self.late()
        return list(messages)

    def count(self) -> Count:
        return Count(len(self.texts))

    def purge(self) -> int:
        return len(self.texts)


class MemoryServer(Server):
    """failures: errors of the next calls; None: no error."""

    wait_seconds = None

    def __init__(self) -> None:
        super().__init__("memory://", 1.0)
        self.queues: dict[str, MemoryQueue] = {}
        self.failures: list[Exception | None] = []
        self.released = 0

    def raise_failure(self) -> None:
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise failure

    def connect(self) -> MemoryServer:
        return self

    def release(self) -> None:
        self.released += 1

    @contextmanager
    def errors(self, connection: Any) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BrokerUnavailable(f"away: {error}") from error

    def declare(self, connection: Any, queue: str) -> MemoryQueue:
        return self.queues.setdefault(queue, MemoryQueue(self, queue))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
def store(server: MemoryServer, clock: FakeClock) -> Iterator[HeldBroker]:
    store = HeldBroker("memory://", server, eta_limit=1, clock=clock)
    yield store
    store.close()


def push(store: HeldBroker, *names: str, due: float | None = None) -> None:
    store.sender.push([envelope(name, "q", due=due) for name in names], PUSH_SECONDS)


# -- the sender --


def test_partial_push_is_retried_with_pauses(
    store: HeldBroker, server: MemoryServer, clock: FakeClock
) -> None:
    server.failures = [None, OSError("a"), NotAll([1], OSError("b"))]
    push(store, "1", "2", "3", "4")
    assert len(server.queues["q"].texts) == 4
    assert clock.slept == [0.1, 0.2]


def test_partial_push_gives_up_at_the_timeout(
    store: HeldBroker, server: MemoryServer, clock: FakeClock
) -> None:
    server.failures = [None] + 99 * [OSError("gone")]
    with pytest.raises(BrokerUnavailable, match="it had accepted 2 of 4 messages"):
        push(store, "1", "2", "3", "4")
    assert 0.5 * PUSH_SECONDS < sum(clock.slept) <= PUSH_SECONDS


def test_push_that_sent_nothing_fails_at_once(
    store: HeldBroker, server: MemoryServer, clock: FakeClock
) -> None:
    server.failures = [OSError("gone")]
    with pytest.raises(BrokerUnavailable):
        push(store, "1", "2", "3")
    assert (clock.slept, server.released) == ([], 1)


def test_push_on_a_closed_connection_is_not_retried(
    store: HeldBroker, server: MemoryServer, clock: FakeClock
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


def test_failure_while_retrying_dead_letters_repeats_only_a_few(
    store: HeldBroker, server: MemoryServer
) -> None:
    letters = dead_letters(store, *"abcdef")
    # Four reads; two times two messages are sent and deleted; one more is sent.
    server.failures = [None] * 11 + 99 * [OSError("gone")]
    with pytest.raises(BrokerUnavailable, match="gone"):
        letters.retry()
    assert (len(server.queues["q"].texts), server.queues[DEAD].finished) == (5, 4)


class ReappearingQueue(MemoryQueue):
    """Messages that were taken reappear at once, behind the others."""

    def take(self, count: int, seconds: float) -> list[Received]:
        found = super().take(count, seconds)
        self.texts += [message.receipt for message in found]
        for message in found:
            message.lease_seconds = 0.0
        return found


def test_reappearing_dead_letters_are_read_once(store: HeldBroker, server: MemoryServer) -> None:
    """As if reading took longer than they stay hidden."""
    server.queues[DEAD] = ReappearingQueue(server, DEAD)
    letters = dead_letters(store, *"abc")
    assert sorted(letter.body for letter in letters.newest()) == [b"a", b"b", b"c"]
    assert letters.retry() == len(server.queues["q"].texts) == 3


# -- the consumer --


def test_consumer_full_of_delayed_messages_fetches_again_after_a_pause(
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
def test_lease_is_lost_with_the_connection_or_the_queue(
    store: HeldBroker, server: MemoryServer, failure: Exception, words: str
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


def test_ack_answered_after_the_end_of_its_lease_may_have_been_carried_out(
    store: HeldBroker, server: MemoryServer
) -> None:
    """A worker was frozen in between: it must not take it for certain that another worker has the message."""
    own = store.consumer.register("w", ["q"], 1)
    push(store, "a", "b")
    first, second = (message.tag for message in store.consumer.lease(["q"], 9).messages)
    server.queues["q"].late = time.monotonic
    assert store.consumer.settle(own, [Ack(first)]) == {first}
    assert [set(store.consumer.in_doubt({first, second})) for _ in range(2)] == [{first}, set()]
    server.queues["q"].late = lambda: math.inf  # the server knows that others have it
    assert store.consumer.settle(own, [Ack(second)]) == {second}
    assert set(store.consumer.in_doubt({second})) == set()


def test_ack_sent_after_the_end_of_its_lease_is_not_in_doubt(store: HeldBroker, server: MemoryServer) -> None:
    """A worker was frozen while it acked messages of another queue."""
    own = store.consumer.register("w", ["q", "r"], 1)
    store.sender.push([envelope("a", "q"), envelope("b", "r")])
    tags = {one.queue: one.tag for one in store.consumer.lease(["q", "r"], 9).messages}
    ended: list[float] = []

    def freeze() -> float:
        ended.append(time.monotonic())
        return ended[-1]

    server.queues["q"].late = freeze
    server.queues["r"].late = lambda: ended[0]
    assert store.consumer.settle(own, [Ack(tags["q"]), Ack(tags["r"])]) == set(tags.values())
    assert set(store.consumer.in_doubt(tags.values())) == {tags["q"]}


def test_lease_survives_a_short_outage(store: HeldBroker, server: MemoryServer) -> None:
    own = store.consumer.register("w", ["q"], 1)
    push(store, "a", "b")
    first, second = store.consumer.lease(["q"], 9).messages
    server.failures = [OSError("away")]
    with pytest.raises(BrokerUnavailable):
        store.consumer.settle(own, [Ack(first.tag), Release(second.tag)])
    assert store.consumer.settle(own, [Ack(first.tag), Release(second.tag)]) == set()
    assert ids(store.consumer.lease(["q"], 9).messages) == ["b"]


def test_failed_registration_releases_the_connection(
    store: HeldBroker, server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: Any, queue: str) -> MemoryQueue:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(server, "declare", refuse)
        with pytest.raises(BrokerUnavailable):
            store.consumer.register("w", ["q"], 1)
    assert server.released == 1
    store.consumer.register("w", ["q"], 1)
    assert DEAD in server.queues  # declared now, not with the first dead letter


@pytest.mark.parametrize("part", ["declare_letters", "revocations"])
def test_failed_registration_takes_no_messages(
    store: HeldBroker, server: MemoryServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Otherwise a worker would settle them under an older generation, which has no effect."""

    def refuse(*given: object) -> None:
        raise OSError("no")

    store.consumer.register("w", ["q"], 1)
    push(store, "a")
    with monkeypatch.context() as patch:
        patch.setattr(server, part, refuse)
        with pytest.raises(BrokerUnavailable):
            store.consumer.register("w", ["q"], 1)
    assert server.released == 2
    with pytest.raises(LeaseLost):
        store.consumer.extend()
    with pytest.raises(LeaseLost):
        store.consumer.lease(["q"], 9)
    own = store.consumer.register("w", ["q"], 1)
    (message,) = store.consumer.lease(["q"], 9).messages
    assert store.consumer.settle(own, [Ack(message.tag)]) == set()
