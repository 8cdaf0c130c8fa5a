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
REFUSED = "refused how it ended"


class Desk:
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

    def come_back(self, expected: set[str]) -> set[str]:
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
            assert time.monotonic() < end, "messages stay away"
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

    def give_up(self) -> set[str]:
        """Return the names of messages still held, after deregistering. If the broker counts leased messages,
        check instead that there are none."""
        if COUNTS not in self.store.lacks:
            (info,) = [info for info in self.store.admin.depths(["q"]) if info.queue == "q"]
            assert info.leased == 0
            return set()
        self.store.consumer.deregister()
        self._register()
        return self.come_back(set())


class Case(NamedTuple):
    """make: returns the settlement for a tag. innocent: whether every broker must accept it."""

    make: Callable[[Desk, int], Settlement]
    innocent: bool


def _innocent(end: str) -> Case:
    def make(desk: Desk, tag: int) -> Settlement:
        row = desk.row(f"good-{tag}", result=["ü", tag])
        failure = desk.row(f"good-{tag}", "FAILURE", exception_to_dict(ValueError("x")))
        ends: dict[str, Settlement] = {
            "ack": Ack(tag),
            "result": Ack(tag, row),
            "dead-letter": DeadLetter(tag, "it is bad", failure),
            "release": Release(tag),
            "store": Store(row),
        }
        return ends[end]

    return Case(make, True)


def with_row(change: Callable[[Desk, int], Any], end: type[Any]) -> Case:
    """Return a case of the settlement *end* with the row that *change* returns."""

    def make(desk: Desk, tag: int) -> Settlement:
        row = change(desk, tag)
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
    texts.map(lambda text: lambda desk, tag: _changed(desk.row(f"bad-{tag}"), 0, text)),
    texts.map(lambda text: lambda desk, tag: desk.row(f"bad-{tag}", text)),
    texts.map(
        lambda text: (
            lambda desk, tag: desk.row(f"bad-{tag}", "FAILURE", {"exc_message": [text]}, traceback=text)
        )
    ),
    st.binary(max_size=50).map(lambda data: lambda desk, tag: (f"bad-{tag}", "SUCCESS", data, None)),
    st.tuples(st.integers(0, 3), values).map(
        lambda pair: lambda desk, tag: _changed(desk.row(f"bad-{tag}"), *pair)
    ),
)
hostile = st.one_of(
    st.builds(with_row, rows, ends),
    values.map(lambda reason: Case(lambda desk, tag: DeadLetter(tag, reason), False)),
    values.map(lambda due: Case(lambda desk, tag: Release(tag, due), False)),
    st.just(Case(lambda desk, tag: Ack(tag + 2**40), False)),
    st.just(Case(lambda desk, tag: DeadLetter(-tag, NUL), False)),
)
innocent = st.sampled_from(("ack", "result", "dead-letter", "release", "store")).map(_innocent)


def settle_all(desk: Desk, batch: Sequence[Case], caplog: pytest.LogCaptureFixture) -> None:
    """Settle a message for each case of *batch*, and check the consequences."""
    caplog.clear()
    tags = desk.lease(len(batch))
    given = [case.make(desk, tag) for case, tag in zip(batch, tags, strict=True)]
    touched = {each.tag for each in given if not isinstance(each, Store)}
    lost = desk.settlements.carry_out(desk.generation, given)
    assert lost.isdisjoint(tags)
    # Release other messages, so that only settlements can leave messages on lease.
    rest = [tag for tag in tags if tag not in touched]
    desk.settlements.carry_out(desk.generation, [Release(tag) for tag in rest])
    dead = Counter(letter.headers for letter in desk.store.admin.dead(limit=10**6))
    assert not dead or max(dead.values()) == 1, "told twice"
    back = {desk.names[tag] for tag in rest}
    ended: set[str] = set()
    for case, each, tag in zip(batch, given, tags, strict=True):
        name = desk.names[tag]
        if isinstance(each, Release):
            if case.innocent:
                back.add(name)
        elif isinstance(each, Store) or each.tag != tag:
            pass
        elif isinstance(each, DeadLetter):
            ended.add(name)
            assert name in dead
        else:
            ended.add(name)
            refused = any(f"message {tag}: the broker refused" in text for text in caplog.messages)
            assert not case.innocent or not refused
            if each.row is not None and (desk.keeps_rows or refused):
                assert desk.stored(each.row) or (refused and name in dead), caplog.text
        if case.innocent and not isinstance(each, Release) and each.row is not None and desk.keeps_rows:
            assert desk.status(f"good-{tag}") in ("SUCCESS", "FAILURE")
    came = desk.come_back(back) | desk.give_up()
    assert came.isdisjoint(ended)
    desk.store.admin.dead_discard()


def fuzz(
    place: Place, store: Broker, cases: st.SearchStrategy[Case], caplog: pytest.LogCaptureFixture
) -> None:
    """Settle batches of valid settlements and *cases*; the place sets their number."""
    desk = Desk(place, store)

    @settings(
        max_examples=place.examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given_by_hypothesis(batch=st.lists(st.one_of(innocent, innocent, cases), min_size=1, max_size=12))
    def settle(batch: list[Case]) -> None:
        settle_all(desk, batch, caplog)

    try:
        settle()
    finally:
        desk.close()


@pytest.fixture
def desk(place: Place, store: Broker) -> Iterator[Desk]:
    """Return a registered Desk."""
    desk = Desk(place, store)
    yield desk
    desk.close()


@asks(DEAD_LETTERS)
def test_whatever_a_task_ends_with_the_others_are_settled_and_nothing_stays_on_lease(
    place: Place, store: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    fuzz(place, store, hostile, caplog)


@asks(DEAD_LETTERS)
@pytest.mark.parametrize("text", [NUL, LONE, ASTRAL, "ü" * 20_000], ids=["nul", "lone", "astral", "long"])
def test_a_text_of_a_failure_takes_no_innocents_with_it(desk: Desk, text: str) -> None:
    first, second, third = desk.lease(3)
    ends: list[Settlement] = [
        Ack(first, desk.row("good-1")),
        Ack(second, desk.row("bad", "FAILURE", traceback=text)),
        DeadLetter(third, text, desk.row("good-3", "FAILURE")),
    ]
    assert desk.settlements.carry_out(desk.generation, ends) == set()
    assert len(desk.store.admin.dead()) == 1
    assert desk.give_up() == set()
    if desk.keeps_rows:
        found = [desk.status(name) for name in ("good-1", "bad", "good-3")]
        assert found == ["SUCCESS", "FAILURE", "FAILURE"]


@asks(DEAD_LETTERS, RESULTS)
def test_a_row_that_is_refused_is_a_failure_that_says_why(
    desk: Desk, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that accepts all settlements has stored the result."""
    (tag,) = desk.lease(1)
    desk.settlements.carry_out(desk.generation, [Ack(tag, ("bad", "SUCCESS", object(), None))])  # type: ignore[arg-type]
    found = place.result("bad")
    assert found is not None
    if REFUSED in caplog.text:
        assert found[0] == "FAILURE"
        assert REFUSED.encode() in found[1]
    assert desk.store.admin.dead() == []


@asks(DEAD_LETTERS, RESULTS)
def test_a_row_whose_task_cannot_be_named_is_a_dead_letter(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that accepts all settlements has stored the result."""
    (tag,) = desk.lease(1)
    row = _changed(desk.row("x"), 0, LONE)
    desk.settlements.carry_out(desk.generation, [Ack(tag, row)])
    if REFUSED in caplog.text:
        (letter,) = desk.store.admin.dead()
        assert REFUSED in letter.reason
        assert letter.tag == tag
    else:
        assert desk.stored(row)


@asks(DEAD_LETTERS)
@pytest.mark.parametrize("due", [float("nan"), 2**70, "soon"])
def test_what_is_refused_of_a_batch_leaves_the_rest_to_be_settled(desk: Desk, due: Any) -> None:
    """The broker has applied nothing by then, or may apply it again."""
    first, second, third = desk.lease(3)
    batch: list[Settlement] = [Ack(first), Release(second, due), DeadLetter(third, "bad")]
    assert desk.settlements.carry_out(desk.generation, batch) == set()
    assert desk.names[first] not in desk.come_back(set())
    assert desk.names[third] in {letter.headers for letter in desk.store.admin.dead()}
    assert desk.give_up().isdisjoint({desk.names[first], desk.names[third]})
