"""Several brokers: which one is used when one does not answer, and what may never reach another one."""

from __future__ import annotations

import logging
import sys

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
from qworker.transports.lease import Ack, Dead, Release
from tests.support.logging_events import logged
from tests.support.messages import envelope


class Slow(MemoryStore):
    """A broker that remembers how long it was given."""

    given: float | None = None

    def push(self, envelopes, timeout=10.0):  # type: ignore[no-untyped-def]
        self.given = timeout
        super().push(envelopes, timeout)


def three() -> tuple[list[Slow], FailoverBroker]:
    clock = FakeClock()
    stores = [Slow(clock) for _ in range(3)]
    for number, store in enumerate(stores):
        store.url = f"memory://u:secret{number}@h{number}/"
    return stores, FailoverBroker(stores)


def test_a_push_goes_to_the_next_that_answers_and_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    stores, store = three()
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


def test_each_server_gets_its_share_of_one_deadline() -> None:
    stores, store = three()
    stores[0].away = True
    store.sender.push([envelope("a")], 9.0)
    assert stores[0].given == pytest.approx(3.0, abs=0.5)
    assert stores[1].given == pytest.approx(4.5, abs=0.5)


def test_when_nobody_answers_the_error_says_so() -> None:
    stores, store = three()
    for one in stores:
        one.away = True
    with pytest.raises(BrokerUnavailable, match="none of 3 brokers answers"):
        store.sender.push([envelope("a")])
    with pytest.raises(BrokerUnavailable, match="none of 3 brokers answers"):
        store.consumer.register("w@h", ["q"], 1)


def test_a_worker_starts_with_the_first_that_answers() -> None:
    stores, store = three()
    stores[0].away = True
    generation = store.consumer.register("w@h", ["q"], 1)
    assert [worker.name for worker in stores[1].admin.workers()] == ["w@h"]
    stores[1].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    assert store.consumer.settle(generation, [Ack(message.tag)]) == set()
    assert stores[1].messages == 0


def test_what_a_worker_tells_of_itself_goes_with_it_to_the_next() -> None:
    stores, store = three()
    store.consumer.present('{"waiting":1}')
    store.consumer.register("w@h", ["q"], 1)
    store.consumer.present('{"waiting":2}')
    store.consumer.extend()
    assert [worker.waiting for worker in store.admin.workers()] == [2]
    stores[0].away = True
    store.consumer.register("w@h", ["q"], 1)
    assert [worker.waiting for worker in stores[1].admin.workers()] == [2]


def test_one_failure_is_not_yet_a_reason_to_leave() -> None:
    stores, store = three()
    generation = store.consumer.register("w@h", ["q"], 1)
    stores[0].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    stores[0].away = True
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    stores[0].away = False
    store.consumer.extend()
    assert store.consumer.settle(generation, [Ack(message.tag)]) == set()


class Waiting(MemoryStore):
    """A broker that fails while somebody waits, so many seconds after it should have answered."""

    def __init__(self, clock: FakeClock, silent: float) -> None:
        super().__init__(clock)
        self._clock, self._silent = clock, silent

    def wait(self, timeout: float, prefetch: int = 0) -> bool:
        self._clock.advance(timeout + self._silent if self._silent else 0.0)
        raise BrokerUnavailable("it says nothing")


def waiting(silent: float) -> FailoverBroker:
    """Brokers of which the first has failed while its worker waited."""
    clock = FakeClock()
    store = FailoverBroker([Waiting(clock, silent), MemoryStore(clock)], monotonic=clock.monotonic)
    store.consumer.register("w@h", ["q"], 1)
    with pytest.raises(BrokerUnavailable):
        store.consumer.wait(5.0)
    return store


def test_who_was_silent_while_we_waited_is_not_asked_again() -> None:
    store = waiting(silent=10.0)
    with pytest.raises(LeaseLost, match="given up"):  # though it would answer now
        store.consumer.extend()
    store.consumer.extend()


def test_a_connection_that_breaks_while_we_wait_is_no_silence() -> None:
    waiting(silent=0.0).consumer.extend()


def test_nobody_else_answers_so_the_lease_is_kept() -> None:
    stores, store = three()
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


def moved() -> tuple[list[Slow], FailoverBroker, int, int, int]:
    """Stores, the store, and of a message at the first server its tag, the old epoch and the new one."""
    stores, store = three()
    old = store.consumer.register("w@h", ["q"], 1)
    stores[0].sender.push([envelope("a")])
    (message,) = store.consumer.lease(["q"], 10).messages
    stores[0].away = True
    with pytest.raises(BrokerUnavailable):
        store.consumer.extend()
    with pytest.raises(LeaseLost, match="given up"):
        store.consumer.extend()
    return stores, store, message.tag, old, store.consumer.register("w@h", ["q"], 1)


def test_the_second_failure_leads_to_the_next_server_under_a_new_epoch() -> None:
    stores, store, _, old, new = moved()
    assert new != old
    assert [worker.name for worker in stores[1].admin.workers()] == ["w@h"]
    assert store.consumer.lease(["q"], 10).messages == []


def test_settlements_of_the_old_server_never_touch_the_new_one() -> None:
    stores, store, tag, old, new = moved()
    for _ in range(5):
        stores[1].sender.push([envelope("a")])
    here = store.consumer.lease(["q"], 10).messages
    inner = {message.tag ^ (1 << MARK_BITS) for message in here}
    assert inner == stores[1].held
    assert store.consumer.settle(old, [Ack(tag)]) == {tag}
    for stale in (tag, *inner):  # also under the new epoch, and also when both servers count alike
        assert store.consumer.settle(new, [Release(stale), Ack(stale)]) == {stale}
    assert stores[1].messages == 5
    assert store.consumer.settle(new, [Ack(message.tag) for message in here]) == set()
    assert stores[1].messages == 0


def test_revocations_of_the_new_server_are_heard_from_the_beginning() -> None:
    stores, store = three()
    store.consumer.register("w@h", ["q"], 1)
    for number in range(5):
        stores[0].sender.revoke([f"a{number}"])
    cursor, heard = store.consumer.revoked_since(0)
    assert len(heard) == 5
    assert store.consumer.revoked_since(cursor)[1] == []
    stores[1].sender.revoke(["b"])
    stores[0].away = True
    for expected in (BrokerUnavailable, LeaseLost):
        with pytest.raises(expected):
            store.consumer.revoked_since(cursor)
    cursor, heard = store.consumer.revoked_since(cursor)
    assert [one.task_id for one in heard] == ["b"]
    assert store.consumer.revoked_since(cursor)[1] == []


def test_a_worker_goes_on_with_the_next_broker_and_does_nothing_twice(
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
        note.delay(2)  # goes to the second one
        for _ in range(6):
            worker.advance(3)
            worker.run()
        assert ran == [1, 2]
        assert second.messages == 0
    assert "failover" in logged(caplog)


def test_a_worker_that_ends_while_its_broker_is_lost_ends_well(caplog: pytest.LogCaptureFixture) -> None:
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
        first.away = True  # so its ack cannot be told

    with StepWorker(app) as worker:
        note.delay()
        worker.parts.listener.step(0.0)
    assert "settlements-lost" in logged(caplog)
    first.away = False
    assert first.messages == 1


def test_the_strategy_shuffle_tries_all_others() -> None:
    stores, _ = three()
    brokers = Brokers(stores, "shuffle")
    assert {tuple(brokers.others(0)) for _ in range(200)} == {(1, 2), (2, 1)}


def test_several_urls_make_one_store_and_one_url_does_not() -> None:
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


def test_what_one_broker_lacks_all_lack() -> None:
    stores, _ = three()
    stores[1].presence = None
    assert FailoverBroker(stores).lacks == {"failed_tasks", "results", "workers"}


class Confirming(MemoryStore):
    confirmed = 0

    def confirm(self) -> None:
        self.confirmed += 1


def test_each_broker_reads_as_many_letters_at_a_time_as_it_does_alone() -> None:
    """Some take all of them in hand; of the others that is too much at once."""
    asked: list[int] = []

    class Portions(MemoryLetters):
        portion = 2

        def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
            asked.append(limit)
            return super().page(queue, limit, after)

    stores, _ = three()
    dead = [Dead(0, "q", "why", float(number), 0, "{}", None, b"") for number in range(5)]
    stores[0].letters = {"dead": Portions("dead", stores[0])}
    stores[1].letters = {"dead": MemoryLetters("dead", stores[1])}
    stores[1].letters["dead"].portion = sys.maxsize
    broker = FailoverBroker(stores)
    broker.letters["dead"].push(dead)
    found = list(broker.letters["dead"].newest())
    assert [letter.died_at for letter in found] == [4.0, 3.0, 2.0, 1.0, 0.0]
    assert asked == [2, 2, 2]
    assert broker.letters["dead"].page(None, 9, found[2]) == found[3:]


def test_an_ack_is_confirmed_by_the_server_that_was_told() -> None:
    clock = FakeClock()
    stores = [Confirming(clock) for _ in range(2)]
    store = FailoverBroker(stores)
    stores[0].away = True
    generation = store.consumer.register("w@h", ["q"], 1)
    store.sender.push([envelope("a")])
    (leased,) = store.consumer.lease(["q"], 1).messages
    assert store.consumer.settle(generation, [Ack(leased.tag)]) == set()
    store.consumer.confirm()
    assert [one.confirmed for one in stores] == [0, 1]
    assert list(store.consumer.settled_before([leased.tag])) == [leased.tag]
