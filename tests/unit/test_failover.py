"""Failover between brokers: which one is used, and what must never reach another one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from qworker import QWorker
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost
from qworker.testing import FakeClock, MemoryStore, StepWorker
from qworker.testing.store import MemoryLetters
from qworker.transports import broker_urls, open_broker
from qworker.transports.failover import (
    MARK_BITS,
    Brokers,
    FailoverBroker,
)
from qworker.transports.lease import Ack, Claim, Dead, Envelope, Release, RowsLocked, Settlement
from tests.support.logging_events import logged
from tests.support.messages import envelope


class TimeoutRecordingStore(MemoryStore):
    """Records the timeout of the last push."""

    given: float | None = None

    def push(self, envelopes, timeout=10.0):  # type: ignore[no-untyped-def]
        self.given = timeout
        super().push(envelopes, timeout)


def three_brokers() -> tuple[list[TimeoutRecordingStore], FailoverBroker]:
    clock = FakeClock()
    stores = [TimeoutRecordingStore(clock) for _ in range(3)]
    for number, store in enumerate(stores):
        store.url = f"memory://u:secret{number}@h{number}/"
    return stores, FailoverBroker(stores)


def test_push_goes_to_the_next_available_broker_and_stays(caplog: pytest.LogCaptureFixture) -> None:
    stores, store = three_brokers()
    stores[0].away = stores[1].away = True
    store.sender.push([envelope("a")], 9.0)
    assert [one.messages for one in stores] == [0, 0, 1]
    stores[0].away = False
    store.sender.push([envelope("a")])
    assert [one.messages for one in stores] == [0, 0, 2]
    assert "h0" in caplog.text
    assert "h2" in caplog.text
    assert "secret" not in caplog.text
    assert len(caplog.records) == 1


def test_servers_share_one_timeout() -> None:
    stores, store = three_brokers()
    stores[0].away = True
    store.sender.push([envelope("a")], 9.0)
    assert stores[0].given == pytest.approx(3.0, abs=0.5)
    assert stores[1].given == pytest.approx(4.5, abs=0.5)


def test_error_when_no_broker_answers() -> None:
    stores, store = three_brokers()
    for one in stores:
        one.away = True
    with pytest.raises(BrokerUnavailable, match="none of the 3 brokers answers"):
        store.sender.push([envelope("a")])
    with pytest.raises(BrokerUnavailable, match="none of the 3 brokers answers"):
        store.consumer.register("w@h", ["q"], 1)


def test_worker_registers_with_the_first_available_broker() -> None:
    stores, store = three_brokers()
    stores[0].away = True
    generation = store.consumer.register("w@h", ["q"], 1)
    assert [worker.name for worker in stores[1].admin.workers()] == ["w@h"]
    stores[1].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    assert store.consumer.settle(generation, [Ack(message.tag)]) == set()
    assert stores[1].messages == 0


def test_presence_moves_with_the_worker_to_the_next_broker() -> None:
    stores, store = three_brokers()
    store.consumer.present('{"waiting":1}')
    store.consumer.register("w@h", ["q"], 1)
    store.consumer.present('{"waiting":2}')
    store.consumer.extend()
    assert [worker.waiting for worker in store.admin.workers()] == [2]
    stores[0].away = True
    store.consumer.register("w@h", ["q"], 1)
    assert [worker.waiting for worker in stores[1].admin.workers()] == [2]


def test_one_failure_does_not_cause_a_failover() -> None:
    stores, store = three_brokers()
    generation = store.consumer.register("w@h", ["q"], 1)
    stores[0].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    stores[0].away = True
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    stores[0].away = False
    store.consumer.extend()
    assert store.consumer.settle(generation, [Ack(message.tag)]) == set()


class LockedStore(MemoryStore):
    """Locked rows keep settlements and pushes from it, after 3 s."""

    def settle(self, generation: int, settlements: Sequence[Settlement]) -> set[int]:
        self.clock.advance(3)  # type: ignore[attr-defined]
        raise RowsLocked("another transaction has locked rows")

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        raise RowsLocked("another transaction has locked rows")

    registers = False

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        if not self.registers:
            raise RowsLocked("another transaction has locked rows")
        return super().register(name, queues, concurrency)


def test_locked_rows_do_not_cause_a_failover() -> None:
    clock = FakeClock()
    locked, other = LockedStore(clock), MemoryStore(clock)
    broker = FailoverBroker([locked, other])
    with pytest.raises(RowsLocked):
        broker.consumer.register("w@h", ["q"], 1)
    away = MemoryStore(clock)
    away.away = True
    FailoverBroker([away, locked, other]).consumer.register("w@h", ["q"], 1)
    assert len(other.admin.workers()) == 1
    other.consumer.deregister()
    locked.registers = True
    MemoryStore.push(locked, [envelope("a")])
    generation = broker.consumer.register("w@h", ["q"], 1)
    (leased,) = broker.consumer.lease(["q"], 1).messages
    for _ in range(3):
        with pytest.raises(RowsLocked):
            broker.consumer.settle(generation, [Ack(leased.tag)])
        broker.consumer.extend()
    with pytest.raises(RowsLocked):
        broker.sender.push([envelope("b")])
    assert other.messages == 0


class FailingWaitStore(MemoryStore):
    """Fails during wait(), *silent* seconds after its timeout."""

    def __init__(self, clock: FakeClock, silent: float) -> None:
        super().__init__(clock)
        self._clock, self._silent = clock, silent

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._clock.advance(timeout + self._silent if self._silent else 0.0)
        raise BrokerUnavailable("it says nothing")


def broker_after_failed_wait(silent: float) -> FailoverBroker:
    """Return a broker whose first server failed during wait()."""
    clock = FakeClock()
    store = FailoverBroker([FailingWaitStore(clock, silent), MemoryStore(clock)], monotonic=clock.monotonic)
    store.consumer.register("w@h", ["q"], 1)
    with pytest.raises(BrokerUnavailable):
        store.consumer.wait(5.0)
    return store


def test_broker_silent_during_wait_is_given_up() -> None:
    store = broker_after_failed_wait(silent=10.0)
    with pytest.raises(LeaseLost, match="given up"):  # even though it would answer now
        store.consumer.extend()
    store.consumer.extend()


def test_connection_error_during_wait_is_not_silence() -> None:
    broker_after_failed_wait(silent=0.0).consumer.extend()


def test_lease_is_kept_while_no_other_broker_answers() -> None:
    stores, store = three_brokers()
    generation = store.consumer.register("w@h", ["q"], 1)
    stores[0].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    for one in stores:
        one.away = True
    for _ in range(5):
        with pytest.raises(BrokerUnavailable):
            store.consumer.extend()
    stores[0].away = False
    assert store.consumer.settle(generation, [Ack(message.tag)]) == set()


def broker_after_failover() -> tuple[list[TimeoutRecordingStore], FailoverBroker, int, int, int]:
    """Return the servers, the broker, the tag of a message on the first server, and both generations."""
    stores, store = three_brokers()
    old_generation = store.consumer.register("w@h", ["q"], 1)
    stores[0].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    stores[0].away = True
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    with pytest.raises(LeaseLost, match="given up"):
        store.consumer.extend()
    return stores, store, message.tag, old_generation, store.consumer.register("w@h", ["q"], 1)


def test_second_failure_moves_to_the_next_server_with_a_new_generation() -> None:
    stores, store, _, old_generation, new_generation = broker_after_failover()
    assert new_generation != old_generation
    assert [worker.name for worker in stores[1].admin.workers()] == ["w@h"]
    assert store.consumer.lease(["q"], 10).messages == []


def test_settlements_of_the_old_server_never_affect_the_new_one() -> None:
    stores, store, tag, old_generation, new_generation = broker_after_failover()
    for _ in range(5):
        stores[1].sender.push([envelope("a")])
    here = store.consumer.lease(["q"], 10).messages
    inner = {message.tag ^ (1 << MARK_BITS) for message in here}
    assert inner == stores[1].held
    assert store.consumer.settle(old_generation, [Ack(tag)]) == {tag}
    for stale in (tag, *inner):  # even under the new generation, and if both servers use equal tags
        assert store.consumer.settle(new_generation, [Release(stale), Ack(stale)]) == {stale}
    assert stores[1].messages == 5
    assert store.consumer.settle(new_generation, [Ack(message.tag) for message in here]) == set()
    assert stores[1].messages == 0


def test_revocations_of_the_new_server_are_read_from_the_start() -> None:
    stores, store = three_brokers()
    store.consumer.register("w@h", ["q"], 1)
    for number in range(5):
        stores[0].sender.revoke([f"a{number}"])
    cursor, revocations = store.consumer.revoked_since(0)
    assert len(revocations) == 5
    assert store.consumer.revoked_since(cursor)[1] == []
    stores[1].sender.revoke(["b"])
    stores[0].away = True
    for expected in (BrokerUnavailable, LeaseLost):
        with pytest.raises(expected):
            store.consumer.revoked_since(cursor)
    cursor, revocations = store.consumer.revoked_since(cursor)
    assert [one.task_id for one in revocations] == ["b"]
    assert store.consumer.revoked_since(cursor)[1] == []


def test_worker_continues_with_the_next_broker_and_repeats_no_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    first, second = MemoryStore(clock), MemoryStore(clock)
    app = QWorker(
        "moves",
        broker=FailoverBroker([first, second]),
        backend="cache+memory://",
        clock=clock,
        set_as_current=False,
    )
    ran = []

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    with caplog.at_level(logging.WARNING), StepWorker(app) as worker:
        note.delay(1)
        worker.run()
        first.away = True
        note.delay(2)  # goes to the second broker
        for _ in range(6):
            worker.advance(3)
            worker.run()
        assert ran == [1, 2]
        assert second.messages == 0
    assert "failover" in logged(caplog)


def test_worker_stops_cleanly_while_its_broker_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    first, second = MemoryStore(clock), MemoryStore(clock)
    app = QWorker(
        "ends",
        broker=FailoverBroker([first, second]),
        backend="cache+memory://",
        clock=clock,
        set_as_current=False,
    )

    @app.task(name="note")
    def note() -> None:
        first.away = True  # so the ack cannot be sent

    with StepWorker(app) as worker:
        note.delay()
        worker.parts.listener.step(0.0)
    assert "settlements-lost" in logged(caplog)
    first.away = False
    assert first.messages == 1


def test_shuffle_strategy_tries_all_other_brokers() -> None:
    stores, _ = three_brokers()
    brokers = Brokers(stores, "shuffle")
    assert {tuple(brokers.others(0)) for _ in range(200)} == {(1, 2), (2, 1)}


def test_several_urls_make_a_failover_broker() -> None:
    app = QWorker(
        "two", broker=["sqlite:///a.db", "sqlite:///b.db"], set_as_current=False,
        broker_failover_strategy="shuffle",
    )  # fmt: skip
    assert app.conf.broker_url == "sqlite:///a.db;sqlite:///b.db"
    assert isinstance(app.broker, FailoverBroker)
    assert not app.results_with_broker
    same = QWorker("two", broker="sqlite:///a.db ; sqlite:///b.db", set_as_current=False)
    assert same.conf.broker_url == app.conf.broker_url
    assert not isinstance(open_broker("sqlite:///a.db", app.conf), FailoverBroker)
    assert broker_urls(None) == []
    assert broker_urls("sentinel://a;sentinel://b") == ["sentinel://a;sentinel://b"]
    for wrong in ([], ["sqlite:///a.db", "nonsense"], ["redis://h:99999/0"]):
        with pytest.raises(ConfigurationError, match="broker_url"):
            QWorker("two", broker=wrong, set_as_current=False).conf.broker_url  # noqa: B018


def test_missing_capabilities_are_those_of_all_brokers() -> None:
    stores, _ = three_brokers()
    stores[1].presence = None
    assert FailoverBroker(stores).lacks == {"failed_tasks", "results", "workers"}


class ConfirmCountingStore(MemoryStore):
    confirmed = 0
    taken: frozenset[int] = frozenset()
    """Tags of messages whose acks are in doubt."""

    def confirm(self) -> None:
        self.confirmed += 1

    def lease(self, *given: Any, **named: Any) -> Claim:
        claim = super().lease(*given, **named)
        self.taken |= {message.tag for message in claim.messages}
        return claim

    def in_doubt(self, tags: Collection[int]) -> Collection[int]:
        return self.taken.intersection(tags)


def test_each_broker_reads_letters_with_its_own_page_size() -> None:
    """The page size of one broker must not be used for another."""
    asked: list[int] = []

    class PagedLetters(MemoryLetters):
        portion = 2

        def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
            asked.append(limit)
            return super().page(queue, limit, after)

    stores, _ = three_brokers()
    dead = [Dead(0, "q", "why", float(number), 0, "{}", None, b"") for number in range(5)]
    stores[0].letters = {"dead": PagedLetters("dead", stores[0])}
    stores[1].letters = {"dead": MemoryLetters("dead", stores[1])}
    stores[1].letters["dead"].portion = sys.maxsize
    broker = FailoverBroker(stores)
    broker.letters["dead"].push(dead)
    found = list(broker.letters["dead"].newest())
    assert [letter.died_at for letter in found] == [4.0, 3.0, 2.0, 1.0, 0.0]
    assert asked == [2, 2, 2]
    assert broker.letters["dead"].page(None, 9, found[2]) == found[3:]


def test_ack_is_confirmed_by_the_server_that_received_it() -> None:
    clock = FakeClock()
    stores = [ConfirmCountingStore(clock) for _ in range(2)]
    store = FailoverBroker(stores)
    stores[0].away = True
    generation = store.consumer.register("w@h", ["q"], 1)
    store.sender.push([envelope("a")])
    (leased,) = store.consumer.lease(["q"], 1).messages
    assert store.consumer.settle(generation, [Ack(leased.tag)]) == set()
    store.consumer.confirm()
    assert [one.confirmed for one in stores] == [0, 1]
    assert list(store.consumer.settled_before([leased.tag])) == [leased.tag]
    assert list(store.consumer.in_doubt([leased.tag, 0])) == [leased.tag]
