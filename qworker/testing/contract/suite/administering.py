"""Administration: states of queues, dead letters, sweeping, purging and moving.

Comes from:  the suite.
Goes to:     the broker of a place.
Thread:      the test's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qworker.testing.clock import FakeClock
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.fixtures import Open, generation, take
from qworker.testing.contract.messages import message, names
from qworker.testing.contract.parts import flush_delayed
from qworker.testing.contract.place import Assumption, Place
from qworker.testing.contract.waiting import until
from qworker.transports.capabilities import COUNTS, RESULTS
from qworker.transports.lease import (
    LETTERS,
    SHOWN,
    Ack,
    Again,
    Broker,
    Dead,
    DeadLetter,
    Envelope,
    Kind,
    Release,
    Store,
)


def test_missing_parts_are_declared_in_lacks(store: Broker) -> None:
    missing = {lack for lack, part in SHOWN.items() if getattr(store, part) is None}
    missing |= {lack for lack, kind in LETTERS.items() if kind not in store.letters}
    assert store.lacks & {*SHOWN, *LETTERS} == missing


@asks(COUNTS)
def test_queues_report_counts_and_oldest_message(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    assert store.admin.queues() == []
    store.sender.push([message("a", "r")])
    oldest = clock.now()
    store.sender.push([message("dead-letter"), message("keep"), message("later", due=oldest + 60)])
    (dead_letter,) = take(store, limit=1)
    take(store, limit=1)
    store.consumer.settle(own, [DeadLetter(dead_letter.tag, "why")])
    clock.advance(5)
    store.sender.push([message("b", "r"), message("c", "r")])
    assert store.admin.queues() == [("q", 0, 1, 1, 1, None), ("r", 3, 0, 0, 0, oldest)]
    store.admin.purge("q")
    assert [info.queue for info in queues_with_ready_messages(store)] == ["r"]


def queues_with_ready_messages(store: Broker) -> list[Any]:
    return [info for info in store.admin.queues() if info.ready]


def test_purge_keeps_leased_messages(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push(
        [message("running"), message("ready"), message("later", due=clock.now() + 9), message("x", "r")]
    )
    (running,) = take(store, limit=1)
    assert store.admin.purge("q") == 2
    assert store.admin.purge("q") == 0
    assert store.consumer.settle(own, [Ack(running.tag)]) == set()
    assert names(take(store, "q", "r")) == ["x"]


def dead_letter_all(store: Broker, clock: FakeClock, *dying: str, queue: str = "q") -> dict[str, int]:
    """Create dead letters named *dying*, one second after another; return their tags by name."""
    own = generation(store)
    store.sender.push([message(name, queue, priority=5) for name in dying])
    for leased in take(store, queue):
        clock.advance(1)
        store.consumer.settle(own, [Release(leased.tag, counted=True)])
        store.consumer.lease([queue], 1)
        store.consumer.settle(own, [DeadLetter(leased.tag, f"{leased.headers} died")])
    return {dead.headers: dead.tag for dead in store.admin.dead()}


def test_dead_letters_are_listed_newest_first(store: Broker, clock: FakeClock) -> None:
    dead_letter_all(store, clock, "a", "b", "c")
    dead_letter_all(store, clock, "d", queue="r")
    assert [dead.headers for dead in store.admin.dead()] == ["d", "c", "b", "a"]
    assert [dead.headers for dead in store.admin.dead("q", limit=2)] == ["c", "b"]
    assert store.admin.dead("r")[0][1:5] == ("r", "d died", clock.now(), 1)
    assert store.admin.dead("nothing") == []


@asks(Assumption.ON_DEMAND)
def test_retried_dead_letters_start_with_zero_deliveries(
    store: Broker, open_: Open, clock: FakeClock
) -> None:
    tags = dead_letter_all(store, clock, "a", "b", "c")
    listening = open_(registered=True)
    assert store.admin.dead_retry([tags["b"], 999]) == 1
    assert listening.consumer.wait(30)
    (again,) = take(store)
    assert (again.headers, again.deliveries, again.redelivered, again.priority) == ("b", 0, True, 5)
    assert store.admin.dead_retry() == 2
    assert names(take(store)) == ["a", "c"]
    assert store.admin.dead() == []
    assert store.admin.dead_retry() == 0


def test_queue_with_only_dead_letters_is_listed(store: Broker, open_: Open) -> None:
    end_all(store, "dead", "a", "b", "c")
    found = [(info.queue, info.ready, info.dead) for info in open_().admin.queues()]
    assert found == [("q", 0, 3)]


def test_purge_deletes_waiting_messages(store: Broker) -> None:
    store.consumer.deregister()  # it prefetches nothing
    store.sender.push([message("a"), message("b"), message("other", "r")])
    until(lambda: [info.ready for info in store.admin.depths(["q", "r"])] == [2, 1])
    assert store.admin.purge("q") == 2
    generation(store)
    assert names(take(store, "q", "r")) == ["other"]


@pytest.mark.parametrize("as_given", [False, True])
def test_concurrent_retries_send_each_letter_once(store: Broker, open_: Open, as_given: bool) -> None:
    kind: Kind = "failed" if "failed" in store.letters and as_given else "dead"
    named = [f"m{number}" for number in range(40)]
    end_all(store, kind, *named)
    found = [
        Again(letter.tag, letter.headers, letter.properties, letter.body)
        for letter in store.letters[kind].newest()
    ]
    other, both, counts = open_(), threading.Barrier(2), list[int]()

    def retry(broker: Broker) -> None:
        letters = broker.letters[kind]
        both.wait(30)
        counts.append(letters.send_again(found) if as_given else letters.retry())

    threads = [threading.Thread(target=retry, args=[broker]) for broker in (store, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(counts) == len(named)
    assert sorted(names(take(store, limit=100))) == sorted(named)
    assert list(store.letters[kind].newest()) == []


@asks(RESULTS)
def test_retrying_a_dead_letter_deletes_its_stored_failure(store: Broker, place: Place) -> None:
    own = generation(store)
    store.sender.push([Envelope("q", '{"id": "one"}', None, b""), Envelope("q", "no JSON", None, b"")])
    one, other = take(store)
    store.consumer.settle(
        own, [DeadLetter(one.tag, "why", ("one", "FAILURE", b"old", None)), DeadLetter(other.tag, "why")]
    )
    assert place.result("one") == ("FAILURE", b"old")
    assert store.admin.dead_retry() == 2
    assert place.result("one") is None


def test_dead_letter_counts_its_final_delivery(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message("a"), message("b")])
    first, second = take(store)
    store.consumer.settle(own, [DeadLetter(first.tag, "why", counted=True), DeadLetter(second.tag, "why")])
    assert {dead.headers: dead.deliveries for dead in store.admin.dead()} == {"a": 1, "b": 0}


def test_dead_letters_are_discarded(store: Broker, clock: FakeClock) -> None:
    tags = dead_letter_all(store, clock, "a", "b", "c")
    assert store.admin.dead_discard([tags["a"], 999]) == 1
    assert [dead.headers for dead in store.admin.dead()] == ["c", "b"]
    assert store.admin.dead_discard([]) == store.admin.dead_retry([]) == 0
    assert store.admin.dead_discard() == 2
    assert store.admin.dead() == []


def end_all(store: Broker, kind: Kind, *ending: str) -> list[int]:
    """Create letters of *kind* with these names, all at the same time; return their tags, newest first."""
    own = generation(store)
    store.sender.push([message(name) for name in ending])
    leased = take(store)
    orders = [DeadLetter(each.tag, "why", failed=kind == "failed") for each in leased]
    assert store.consumer.settle(own, orders) == set()
    return [letter.tag for letter in store.letters[kind].newest()]


def test_letters_are_read_in_pages(store: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, letters in store.letters.items():
        tags = end_all(store, kind, "a", "b", "c", "d", "e")
        page = letters.page("q", 2, None)
        assert len(page) == 2
        assert letters.page("nothing", 2, page[-1]) == []
        following = letters.page("q", 2, page[-1])
        assert letters.discard([tags[1], tags[2]]) == 2
        if letters.portion < sys.maxsize:  # otherwise the first page has all
            assert [letter.tag for letter in page + following] == tags[:4]
            rest = letters.page("q", 9, page[-1])  # which was discarded
            assert [letter.tag for letter in rest] == tags[3:]
            assert letters.page(None, 9, rest[-1]) == []
        asked: list[int] = []
        read = letters.page

        def note(
            queue: str | None,
            limit: int,
            after: Dead | None,
            read: Callable[..., list[Dead]] = read,
            asked: list[int] = asked,
        ) -> list[Dead]:
            asked.append(limit)
            return read(queue, limit, after)

        monkeypatch.setattr(letters, "page", note)
        assert len(list(letters.newest(limit=1))) == 1
        assert next(letters.newest()).tag in {tags[0], *tags[3:]}
        assert asked == [1, letters.portion], "so many at a time, and no more than were asked for"
        if letters.portion < sys.maxsize:
            monkeypatch.setattr(letters, "portion", 2)
            assert [letter.tag for letter in letters.newest()] == [tags[0], *tags[3:]]
            assert asked[2:] == [2, 2]
        assert letters.discard() == 3


def test_letters_can_be_sent_again_with_changes(store: Broker) -> None:
    for kind, letters in store.letters.items():
        tags = end_all(store, kind, "a", "b")
        calls = [Again(tag, "changed", None, b"other") for tag in (tags[0], 999)]
        assert letters.send_again(calls) == 1
        assert [letter.tag for letter in letters.newest()] == [tags[1]]
        (again,) = take(store)
        assert (again.headers, again.body, again.deliveries) == ("changed", b"other", 0)
        assert letters.retry(tags) == 1
        assert list(letters.newest()) == []
        store.consumer.settle(generation(store), [Ack(each.tag) for each in (again, *take(store))])


@asks(Assumption.ON_DEMAND)
def test_many_dead_letters_are_retried_and_discarded_at_once(store: Broker) -> None:
    own = generation(store)
    store.sender.push([message(str(number)) for number in range(1200)])
    leased = take(store, limit=2000)
    store.consumer.settle(own, [DeadLetter(each.tag, "why") for each in leased])
    tags = [each.tag for each in leased]
    assert store.admin.dead_retry(tags[:600]) == 600
    assert store.admin.dead_discard(tags) == 600
    assert len(take(store, limit=2000)) == 600


@asks(Assumption.SWEPT)
def test_sweep_deletes_old_dead_letters(store: Broker, clock: FakeClock) -> None:
    dead_letter_all(store, clock, "old")
    clock.advance(100)
    dead_letter_all(store, clock, "young")
    assert store.consumer.sweep("dead", 50.0, 1000) == 1
    assert [dead.headers for dead in store.admin.dead()] == ["young"]
    assert store.consumer.sweep("dead", 50.0, 1000) == 0


@asks(Assumption.SWEPT)
def test_sweep_keeps_the_latest_dead_letters(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message(name) for name in ("sent first, died last", "b", "c", "d")])
    first, *others = take(store)
    for leased in (*others, first):
        clock.advance(1)
        store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    assert store.consumer.sweep("dead", 1e9, 2) == 2
    assert [dead.headers for dead in store.admin.dead()] == ["sent first, died last", "d"]


@asks(Assumption.SWEPT)
def test_sweep_limits_dead_letters_per_queue(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.sender.push([message("rare", "r"), *(message(name) for name in "abcd")])
    for leased in [*take(store, "r"), *take(store, "q")]:
        clock.advance(1)
        store.consumer.settle(own, [DeadLetter(leased.tag, "why")])
    assert store.consumer.sweep("dead", 1e9, 2) == 2
    assert [dead.headers for dead in store.admin.dead()] == ["d", "c", "rare"]
    assert store.consumer.sweep("dead", 1e9, 2) == 0


def test_depths_include_every_requested_queue(store: Broker) -> None:
    store.sender.push([message("1", queue="a"), message("2", queue="a"), message("3", queue="b")])
    until(lambda: store.admin.depths(["a"])[0].ready == 2)  # RabbitMQ updates counts with a delay
    assert [(info.queue, info.ready) for info in store.admin.depths(["c", "a"])] == [("c", 0), ("a", 2)]


@asks(RESULTS)
def test_sweep_deletes_expired_results(store: Broker, place: Place, clock: FakeClock) -> None:
    now = clock.now()
    store.consumer.settle(generation(store), [Store((name, "SUCCESS", b"", expires)) for name, expires in
                                (("gone", now + 1), ("kept", now + 100), ("forever", None))])  # fmt: skip
    clock.advance(10)
    assert store.consumer.sweep("dead", 1e9, 1000) == 1
    assert [place.result(name) is not None for name in ("gone", "kept", "forever")] == [False, True, True]


@asks(RESULTS)
def test_sweep_works_in_portions(store: Broker, clock: FakeClock) -> None:
    own = generation(store)
    store.consumer.settle(
        own, [Store((str(number), "SUCCESS", b"", clock.now() + 1)) for number in range(5000)]
    )
    clock.advance(10)
    portions = []
    while portion := store.consumer.sweep("dead", 1e9, 1000):
        portions.append(portion)
    assert sum(portions) == 5000
    assert max(portions) <= 2000


def test_closed_store_reopens_on_use(store: Broker) -> None:
    store.close()
    store.sender.push([message("a")])
    generation(store)
    assert names(take(store)) == ["a"]


def test_unused_broker_reports_no_messages(open_: Open) -> None:
    store = open_()
    admin = store.admin
    assert admin.queues() == []
    assert store.delayed is None or store.delayed.next_due(["q"]) is None
    assert admin.dead() == []
    assert [(info.ready, info.delayed, info.leased) for info in admin.depths(["q"])] == [(0, 0, 0)]


def test_closing_a_store_releases_files_and_threads(open_: Open) -> None:
    """A process may open and close any number of stores, for example with many threads."""

    def use() -> None:
        store = open_()
        own = generation(store)
        store.sender.push([message("a")])
        found = take(store)
        assert names(found) == ["a"]
        store.consumer.settle(own, [Ack(found[0].tag)])
        store.close()

    use()  # files and threads that are opened only once may stay
    before = _open_here()
    for _ in range(4):
        use()
    until(lambda: all(now <= then for now, then in zip(_open_here(), before, strict=True)))


def _open_here() -> tuple[int, int]:
    """Return the number of threads and, if known, of open files in this process."""
    files = "/proc/self/fd"
    return threading.active_count(), len(os.listdir(files)) if os.path.isdir(files) else 0


@asks(Assumption.DEAD_FROM_ELSEWHERE)
def test_dead_letters_of_another_broker_can_be_imported(store: Broker, clock: FakeClock) -> None:
    """They keep everything except their tags."""
    store.letters["dead"].push([])
    assert store.admin.dead() == []
    yaml = '{"content_type":"application/x-yaml","content_encoding":"utf-8","correlation_id":"b"}'
    letters = [
        Dead(7, "q", "because", clock.now() - 61, 3, '{"id":"a"}', None, b"body"),
        Dead(7, "q", "it was", clock.now() - 60, 0, '{"id":"b"}', yaml, b"\x00\xff"),
    ]
    store.letters["dead"].push(letters)
    own = generation(store)
    store.sender.push([message("c")])
    (leased,) = take(store)
    store.consumer.settle(own, [DeadLetter(leased.tag, "later")])
    found = store.admin.dead()
    assert [letter[1:] for letter in found[1:]] == [letter[1:] for letter in reversed(letters)]
    assert len({letter.tag for letter in found}) == 3
    assert store.admin.dead_retry() == 3
    assert sorted(names(take(store))) == ["c", '{"id":"a"}', '{"id":"b"}']
    store.letters["dead"].push([letters[0]._replace(queue="r")])
    assert [(info.queue, info.dead) for info in store.admin.queues() if info.dead] == [("r", 1)]
    assert [letter.queue for letter in store.admin.dead("r")] == ["r"]
    assert store.admin.dead_discard() == 1


@asks(Assumption.FLUSHED)
def test_flush_delayed_makes_messages_ready(store: Broker, clock: FakeClock) -> None:
    store.sender.push([message(name, due=clock.now() + 3600) for name in "ab"])
    store.sender.push([message("c", "r", due=clock.now() + 3600)])
    assert flush_delayed(store, "q") == 2
    assert flush_delayed(store, "q") == 0
    assert names(take(store)) == ["a", "b"]
    assert take(store, "r") == []
