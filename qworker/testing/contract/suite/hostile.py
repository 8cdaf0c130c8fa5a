"""Batches of valid settlements and settlements that a broker may refuse.

Whatever a task's outcome contains (text, ids, sizes, types), the valid settlements of its batch are applied,
and the invalid one becomes a failure with the reason, or a dead letter. Nothing is lost, reported twice, left
on lease, or raised.

Comes from:  the suite; hypothesis, for the settlements.
Goes to:     the broker of a place, through the code that a worker uses (``Settlements``).
Thread:      the test's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_by_hypothesis
from hypothesis import strategies as st

from qworker import QWorker
from qworker.components.receiving.settlements import Settlements
from qworker.message.exceptions import exception_to_dict
from qworker.testing.contract.collecting import asks
from qworker.testing.contract.messages import message
from qworker.testing.contract.place import Place
from qworker.testing.store import MemoryStore
from qworker.transports.capabilities import COUNTS, DEAD_LETTERS, RESULTS
from qworker.transports.lease import Ack, Broker, DeadLetter, Release, ResultRow, Settlement, Store

NUL, LONE, ASTRAL = "bob\0", "bob\ud800", "bob\U0001f600"
TEXTS = (NUL, LONE, ASTRAL, "", "x" * 300, "ü" * 20_000, "\udfff\0" * 40, "'\\\"%s;--", "\x7f\x1b[31m")
WRONG: tuple[Any, ...] = (None, 7, 2**70, 1.5, float("nan"), b"\xff\xfe", ["x"], {"a": 1}, object())
MOST_TEXT = 300
"""Maximum characters of ids and states that tests read back."""
PATIENCE = 20.0
REFUSED = "refused its outcome"


class Harness:
    """A registered consumer of the queue "q", its Settlements, and their results."""

    def __init__(self, place: Place, store: Broker) -> None:
        self.place = place
        self.store = store
        self.app = QWorker("fuzz", broker=MemoryStore(), backend=place.results_url, set_as_current=False)
        self.settlements = Settlements(self.app, store.consumer)
        self.keeps_rows = RESULTS not in store.lacks
        self.names: dict[int, str] = {}
        """Names of the messages on lease, by tag."""
        self._pushed = 0
        self._register()

    def _register(self) -> None:
        self.generation = self.store.consumer.register("fuzz@test", ["q"], 2)

    def close(self) -> None:
        self.app.close()

    def row(self, task_id: str, status: str = "SUCCESS", result: Any = None, **extra: Any) -> Any:
        """Return a row for a result, as a worker makes it."""
        backend = self.app.backend
        return backend.row(task_id, backend.meta(task_id, status, result, **extra))

    def lease(self, count: int) -> list[int]:
        """Publish and lease *count* messages; return their tags."""
        pushed = [f"m{number}" for number in range(self._pushed, self._pushed + count)]
        self._pushed += count
        self.store.sender.push([message(name) for name in pushed])
        self.names = {}
        for found in self._leased(lambda: len(self.names) < count):
            self.names |= {leased.tag: leased.headers for leased in found if leased.headers in pushed}
            # Messages returned by the previous batch.
            self._ack([leased.tag for leased in found if leased.tag not in self.names])
        return list(self.names)

    def lease_returned(self, expected: set[str]) -> set[str]:
        """Lease and acknowledge all available messages, at least those *expected*; return their names."""
        names: set[str] = set()
        for found in self._leased(lambda: not names.issuperset(expected)):
            names.update(leased.headers for leased in found)
            self._ack([leased.tag for leased in found])
        return names

    def _leased(self, missing: Callable[[], bool]) -> Iterator[Sequence[Any]]:
        """Yield leased messages until there are no more, and none is *missing*."""
        end = time.monotonic() + PATIENCE
        while (found := self.store.consumer.lease(["q"], 100).messages) or missing():
            assert time.monotonic() < end, "messages are missing"
            yield found
            if not found:
                self.store.consumer.wait(0.05)

    def _ack(self, tags: Sequence[int]) -> None:
        self.store.consumer.settle(self.generation, [Ack(tag) for tag in tags])

    def status(self, task_id: str) -> str | None:
        found = self.place.result(task_id)
        return None if found is None else found[0]

    def stored(self, row: ResultRow) -> bool:
        """Return whether there is a result for the task of *row*, under any name."""
        try:
            return self.place.result(row[0]) is not None
        except Exception:  # noqa: BLE001 - a name that cannot be looked up has no result
            return False

    def release_held(self) -> set[str]:
        """Return the names of messages still held, after deregistering. If the broker counts leased messages,
        check instead that there are none."""
        if COUNTS not in self.store.lacks:
            (info,) = [info for info in self.store.admin.depths(["q"]) if info.queue == "q"]
            assert info.leased == 0
            return set()
        self.store.consumer.deregister()
        self._register()
        return self.lease_returned(set())


class Case(NamedTuple):
    """make: returns the settlement for a tag. valid: whether every broker must accept it."""

    make: Callable[[Harness, int], Settlement]
    valid: bool


def _valid(end: str) -> Case:
    def make(harness: Harness, tag: int) -> Settlement:
        row = harness.row(f"good-{tag}", result=["ü", tag])
        failure = harness.row(f"good-{tag}", "FAILURE", exception_to_dict(ValueError("x")))
        ends: dict[str, Settlement] = {
            "ack": Ack(tag),
            "result": Ack(tag, row),
            "dead-letter": DeadLetter(tag, "it is bad", failure),
            "release": Release(tag),
            "store": Store(row),
        }
        return ends[end]

    return Case(make, True)


def with_row(change: Callable[[Harness, int], Any], end: type[Any]) -> Case:
    """Return a case of the settlement *end* with the row that *change* returns."""

    def make(harness: Harness, tag: int) -> Settlement:
        row = change(harness, tag)
        return (
            Store(row)
            if end is Store
            else DeadLetter(tag, "bad", row)
            if end is DeadLetter
            else Ack(tag, row)
        )

    return Case(make, False)


def _changed(row: ResultRow, column: int, value: Any) -> Any:
    return (*row[:column], value, *row[column + 1 :])


texts = st.sampled_from(TEXTS) | st.text(st.characters(), max_size=MOST_TEXT)
values: st.SearchStrategy[Any] = st.sampled_from(WRONG) | texts
ends = st.sampled_from((Ack, DeadLetter, Store))
rows = st.one_of(
    texts.map(lambda text: lambda harness, tag: _changed(harness.row(f"bad-{tag}"), 0, text)),
    texts.map(lambda text: lambda harness, tag: harness.row(f"bad-{tag}", text)),
    texts.map(
        lambda text: (
            lambda harness, tag: harness.row(f"bad-{tag}", "FAILURE", {"exc_message": [text]}, traceback=text)
        )
    ),
    st.binary(max_size=50).map(lambda data: lambda harness, tag: (f"bad-{tag}", "SUCCESS", data, None)),
    st.tuples(st.integers(0, 3), values).map(
        lambda pair: lambda harness, tag: _changed(harness.row(f"bad-{tag}"), *pair)
    ),
)
hostile = st.one_of(
    st.builds(with_row, rows, ends),
    values.map(lambda reason: Case(lambda harness, tag: DeadLetter(tag, reason), False)),
    values.map(lambda due: Case(lambda harness, tag: Release(tag, due), False)),
    st.just(Case(lambda harness, tag: Ack(tag + 2**40), False)),
    st.just(Case(lambda harness, tag: DeadLetter(-tag, NUL), False)),
)
valid = st.sampled_from(("ack", "result", "dead-letter", "release", "store")).map(_valid)


def settle_all(harness: Harness, batch: Sequence[Case], caplog: pytest.LogCaptureFixture) -> None:
    """Settle a message for each case of *batch*, and check the consequences."""
    caplog.clear()
    tags = harness.lease(len(batch))
    given = [case.make(harness, tag) for case, tag in zip(batch, tags, strict=True)]
    touched = {each.tag for each in given if not isinstance(each, Store)}
    lost = harness.settlements.carry_out(harness.generation, given)
    assert lost.isdisjoint(tags)
    # Release other messages, so that only settlements can leave messages on lease.
    rest = [tag for tag in tags if tag not in touched]
    harness.settlements.carry_out(harness.generation, [Release(tag) for tag in rest])
    dead = Counter(letter.headers for letter in harness.store.admin.dead(limit=10**6))
    assert not dead or max(dead.values()) == 1, "dead-lettered twice"
    back = {harness.names[tag] for tag in rest}
    ended: set[str] = set()
    for case, each, tag in zip(batch, given, tags, strict=True):
        name = harness.names[tag]
        if isinstance(each, Release):
            if case.valid:
                back.add(name)
        elif isinstance(each, Store) or each.tag != tag:
            pass
        elif isinstance(each, DeadLetter):
            ended.add(name)
            assert name in dead
        else:
            ended.add(name)
            refused = any(f"message {tag}: the broker refused" in text for text in caplog.messages)
            assert not case.valid or not refused
            if each.row is not None and (harness.keeps_rows or refused):
                assert harness.stored(each.row) or (refused and name in dead), caplog.text
        if case.valid and not isinstance(each, Release) and each.row is not None and harness.keeps_rows:
            assert harness.status(f"good-{tag}") in ("SUCCESS", "FAILURE")
    came = harness.lease_returned(back) | harness.release_held()
    assert came.isdisjoint(ended)
    harness.store.admin.dead_discard()


def fuzz(
    place: Place, store: Broker, cases: st.SearchStrategy[Case], caplog: pytest.LogCaptureFixture
) -> None:
    """Settle batches of valid settlements and *cases*; the place sets their number."""
    harness = Harness(place, store)

    @settings(
        max_examples=place.examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given_by_hypothesis(batch=st.lists(st.one_of(valid, valid, cases), min_size=1, max_size=12))
    def settle(batch: list[Case]) -> None:
        settle_all(harness, batch, caplog)

    try:
        settle()
    finally:
        harness.close()


@pytest.fixture
def harness(place: Place, store: Broker) -> Iterator[Harness]:
    """Return a registered Harness."""
    harness = Harness(place, store)
    yield harness
    harness.close()


@asks(DEAD_LETTERS)
def test_invalid_settlements_do_not_affect_the_rest_of_the_batch(
    place: Place, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz(place, store, hostile, caplog)


@asks(DEAD_LETTERS)
@pytest.mark.parametrize("text", [NUL, LONE, ASTRAL, "ü" * 20_000], ids=["nul", "lone", "astral", "long"])
def test_unusual_failure_text_does_not_affect_other_settlements(harness: Harness, text: str) -> None:
    first, second, third = harness.lease(3)
    ends: list[Settlement] = [
        Ack(first, harness.row("good-1")),
        Ack(second, harness.row("bad", "FAILURE", traceback=text)),
        DeadLetter(third, text, harness.row("good-3", "FAILURE")),
    ]
    assert harness.settlements.carry_out(harness.generation, ends) == set()
    assert len(harness.store.admin.dead()) == 1
    assert harness.release_held() == set()
    if harness.keeps_rows:
        found = [harness.status(name) for name in ("good-1", "bad", "good-3")]
        assert found == ["SUCCESS", "FAILURE", "FAILURE"]


@asks(DEAD_LETTERS, RESULTS)
def test_refused_result_is_stored_as_failure_with_the_reason(
    harness: Harness, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that accepts all settlements has stored the result."""
    (tag,) = harness.lease(1)
    harness.settlements.carry_out(harness.generation, [Ack(tag, ("bad", "SUCCESS", object(), None))])  # type: ignore[arg-type]
    found = place.result("bad")
    assert found is not None
    if REFUSED in caplog.text:
        assert found[0] == "FAILURE"
        assert REFUSED.encode() in found[1]
    assert harness.store.admin.dead() == []


@asks(DEAD_LETTERS, RESULTS)
def test_refused_result_with_invalid_task_id_becomes_a_dead_letter(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that accepts all settlements has stored the result."""
    (tag,) = harness.lease(1)
    row = _changed(harness.row("x"), 0, LONE)
    harness.settlements.carry_out(harness.generation, [Ack(tag, row)])
    if REFUSED in caplog.text:
        (letter,) = harness.store.admin.dead()
        assert REFUSED in letter.reason
        assert letter.tag == tag
    else:
        assert harness.stored(row)


@asks(DEAD_LETTERS)
@pytest.mark.parametrize("due", [float("nan"), 2**70, "soon"])
def test_batch_with_a_refused_release_settles_the_others(harness: Harness, due: Any) -> None:
    """The broker has applied nothing by then, or may apply it again."""
    first, second, third = harness.lease(3)
    batch: list[Settlement] = [Ack(first), Release(second, due), DeadLetter(third, "bad")]
    assert harness.settlements.carry_out(harness.generation, batch) == set()
    assert harness.names[first] not in harness.lease_returned(set())
    assert harness.names[third] in {letter.headers for letter in harness.store.admin.dead()}
    assert harness.release_held().isdisjoint({harness.names[first], harness.names[third]})
