"""Settlements that a store may never take, among others that it must: on every store the worker's side ends
well.

Whatever a task's outcome holds (text, ids, sizes, types), the innocents of its batch are settled, the culprit
becomes a failure that says why or a dead letter, nothing vanishes, nothing is told twice, nothing stays on
lease, nothing is raised.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from qworker import QWorker
from qworker.components.settlements import Settlements
from qworker.message.exceptions import exception_to_dict
from qworker.testing.store import MemoryStore
from qworker.transports.lease import Ack, DeadLetter, Release, Settlement, Store
from qworker.transports.sql.result_rows import pack
from tests.contract.lease_places import PLACES, Place
from tests.contract.place_disque import DisquePlace
from tests.contract.place_kombu import KombuPlace
from tests.contract.place_sqs import SqsPlace
from tests.support.messages import message

pytestmark = pytest.mark.contract

KINDS = (
    *("sqlite", "redis", "rabbitmq", "postgresql", "mysql", "memory", "failover", "kombu"),
    *("sqs", "ironmq", "disque", "mongodb"),
)
NUL, LONE, ASTRAL = "bob\0", "bob\ud800", "bob\U0001f600"
TEXTS = (NUL, LONE, ASTRAL, "", "x" * 300, "ü" * 20_000, "\udfff\0" * 40, "'\\\"%s;--", "\x7f\x1b[31m")
WRONG: tuple[Any, ...] = (None, 7, 2**70, 1.5, float("nan"), b"\xff\xfe", ["x"], {"a": 1}, object())
PATIENCE = 20.0
MOST_TEXT = 300
"""Characters of ids and states that tests look for again."""


class Desk:
    """A store that holds leases, what settles them, and the results beside them."""

    def __init__(self, kind: str, place: Place) -> None:
        self.kind = kind
        self.place = place
        self.store = place.open()
        self.app = QWorker(
            "fuzz",
            broker=self.store if isinstance(self.store, MemoryStore) else MemoryStore(),
            backend=_backend_of(kind, place),
            result_backend_transport_options={"global_keyprefix": getattr(place, "prefix", "")},
            set_as_current=False,
        )
        self.settlements = Settlements(self.app, self.store.consumer)
        self.queue: str = getattr(place, "queue", "q")
        self.generation = self.store.consumer.register("fuzz@test", [self.queue], 2)
        self.keeps_rows = "results" not in self.store.lacks
        self.numbers = iter(range(10**9))
        self.names: dict[int, str] = {}
        """Of the messages on lease, by their tags."""

    def row(self, task_id: str, status: str = "SUCCESS", result: Any = None, **extra: Any) -> Any:
        backend = self.app.backend
        return backend.row(task_id, backend.meta(task_id, status, result, **extra))

    def lease(self, count: int) -> list[int]:
        pushed = [f"m{next(self.numbers)}" for _ in range(count)]
        self.store.sender.push([message(name, self.queue) for name in pushed])
        self.names = {}
        end = time.monotonic() + PATIENCE
        while len(self.names) < count:
            assert time.monotonic() < end, f"{len(self.names)} of {count}"
            found = self.store.consumer.lease([self.queue], count - len(self.names)).messages
            self.names |= {leased.tag: leased.headers for leased in found if leased.headers in pushed}
            strangers = [leased.tag for leased in found if leased.tag not in self.names]
            self.store.consumer.settle(
                self.generation, [Ack(tag) for tag in strangers]
            )  # of the batch before
            if not found:
                self.store.consumer.wait(0.05)
        return list(self.names)

    def come_back(self, expected: set[str]) -> set[str]:
        """The names of what can be leased now: at least those *expected*."""
        names: set[str] = set()
        end = time.monotonic() + PATIENCE
        while found := self.store.consumer.lease([self.queue], 100).messages or not expected <= names:
            assert time.monotonic() < end, f"{expected - names} stay away"
            if isinstance(found, list):
                names |= {leased.headers for leased in found}
                self.store.consumer.settle(self.generation, [Ack(leased.tag) for leased in found])
            else:
                self.store.consumer.wait(0.05)
        return names

    def status(self, task_id: str) -> str | None:
        if not self.keeps_rows:
            return None
        if isinstance(self.store, MemoryStore):
            found = self.place.result(task_id)
            return None if found is None else found[0]
        meta = self.app.backend.get(task_id)
        return None if meta is None else meta["status"]

    def stored(self, row: Any) -> bool:
        """Whether there is a result for the task of *row*, by whatever name it goes."""
        try:
            return self.place.result(row[0]) is not None
        except Exception:  # noqa: BLE001 - no such name can be asked for, so it has none
            return False

    def on_lease(self) -> int:
        if "counts" in self.store.lacks and self.kind not in ("sqs", "disque"):
            return 0
        ask = self.store.admin
        found = ask.queues() if self.kind == "disque" else ask.depths([self.queue])
        return sum(info.leased for info in found if info.queue == self.queue)

    def clear(self) -> None:
        """Away with dead letters, and with what came back; Amazon lets nobody do that often."""
        if self.kind != "sqs":
            self.store.admin.dead_discard()
            self.store.admin.purge(self.queue)

    def close(self) -> None:
        self.store.close()
        self.app.backend.close()


def _backend_of(kind: str, place: Any) -> str:
    if kind in ("sqlite", "failover"):
        return f"sqlite:///{place.path}"
    if kind in ("postgresql", "mysql"):
        return f"db+{place.url}"
    return str(place.url) if kind in ("redis", "mongodb") else "cache+memory://"


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    place: Any
    if request.param == "sqs":
        place = SqsPlace(request.getfixturevalue("sqs"))
    elif request.param == "disque":
        place = DisquePlace(request.getfixturevalue("disque"))
    elif request.param == "kombu":
        place = KombuPlace()
    else:
        if server := PLACES[request.param].fixture:
            request.getfixturevalue(server)
        place = PLACES[request.param](tmp_path)
    desk = Desk(request.param, place)
    yield desk
    desk.close()
    getattr(place, "clear", lambda: None)()


class Case(NamedTuple):
    """make: the settlement of a message. ends: how it may end. task_id: of its result."""

    make: Callable[[Desk, int], Settlement]
    innocent: bool


def _innocent(end: str) -> Case:
    def make(desk: Desk, tag: int) -> Settlement:
        row = desk.row(f"good-{tag}", result=["ü", tag])
        return {
            "ack": Ack(tag),
            "result": Ack(tag, row),
            "dead-letter": DeadLetter(tag, "it is bad", desk.row(f"good-{tag}", "FAILURE",
            exception_to_dict(ValueError("x")))),
            "release": Release(tag),
            "store": Store(row),
        }[end]  # fmt: skip

    return Case(make, True)


def _hostile_row(change: Callable[[Desk, int], Any], end: type[Any]) -> Case:
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


def _hostile_columns(desk: Desk, tag: int, **columns: Any) -> Any:
    usual = {"status": "SUCCESS", "result": b"1", "traceback": None, "children": None, "date_done": None}
    return f"bad-{tag}", "SUCCESS", pack({**usual, **columns}), None


texts = st.sampled_from(TEXTS) | st.text(st.characters(), max_size=MOST_TEXT)
values = st.sampled_from(WRONG) | texts
rows = st.one_of(
    texts.map(lambda text: lambda desk, tag: (text, *desk.row(f"bad-{tag}")[1:])),
    texts.map(lambda text: lambda desk, tag: desk.row(f"bad-{tag}", text)),
    texts.map(lambda text: lambda desk, tag: desk.row(f"bad-{tag}", "FAILURE", {"exc_message": [text]},
    traceback=text)),
    st.binary(max_size=50).map(lambda data: lambda desk, tag: (f"bad-{tag}", "SUCCESS", data, None)),
    st.binary(max_size=50).map(lambda data: lambda desk, tag: (f"bad-{tag}", "SUCCESS", b"\0columns" + data,
    None)),
    st.tuples(st.sampled_from(("status", "result", "traceback", "children", "date_done")), texts).map(
        lambda pair: lambda desk, tag: _hostile_columns(desk, tag, **{pair[0]: pair[1]})
    ),
    st.tuples(st.integers(0, 3), values).map(
        lambda pair: lambda desk, tag: (*desk.row(f"bad-{tag}")[: pair[0]], pair[1],
        *desk.row(f"bad-{tag}")[pair[0] + 1 :])
    ),
)  # fmt: skip
hostile = st.one_of(
    st.builds(_hostile_row, rows, st.sampled_from((Ack, DeadLetter, Store))),
    values.map(lambda reason: Case(lambda desk, tag: DeadLetter(tag, reason), False)),
    values.map(lambda due: Case(lambda desk, tag: Release(tag, due), False)),
    st.just(Case(lambda desk, tag: Ack(tag + 2**40), False)),
    st.just(Case(lambda desk, tag: DeadLetter(-tag, NUL), False)),
)
innocent = st.sampled_from(("ack", "result", "dead-letter", "release", "store")).map(_innocent)


def _fuzz(desk: Desk, batch: list[Case], caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    tags = desk.lease(len(batch))
    given = [case.make(desk, tag) for case, tag in zip(batch, tags, strict=True)]
    touched = {each.tag for each in given if not isinstance(each, Store)}
    lost = desk.settlements.carry_out(desk.generation, given)
    assert lost.isdisjoint(tags)
    # What nobody spoke of is given back, so that what is still on lease is the fault of a settlement.
    rest = [tag for tag in tags if tag not in touched]
    desk.settlements.carry_out(desk.generation, [Release(tag) for tag in rest])
    assert desk.on_lease() == 0
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
            named = any(f"(message {tag})" in text for text in caplog.messages)
            assert not case.innocent or not named
            if each.row is not None and desk.keeps_rows and not named:
                assert desk.stored(each.row)
            elif named:
                assert desk.stored(each.row) or name in dead, caplog.text
        if case.innocent and not isinstance(each, Release) and each.row is not None and desk.keeps_rows:
            assert desk.status(f"good-{tag}") in ("SUCCESS", "FAILURE")
    came = desk.come_back(back)
    if desk.kind == "kombu":  # it counts nothing, so what it had kept on lease shows when it ends
        desk.store.consumer.deregister()
        desk.generation = desk.store.consumer.register("fuzz@test", [desk.queue], 2)
        came |= desk.come_back(set())
    assert came.isdisjoint(ended)
    desk.clear()


def test_whatever_a_task_ends_with_the_others_are_settled_and_nothing_stays_on_lease(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    examples = {
        "memory": 200,
        "sqlite": 80,
        "failover": 20,
        "kombu": 80,
        "sqs": 4,
        "ironmq": 10,
        "disque": 10,
        "mongodb": 6,
    }.get(desk.kind, 40)
    sizes = {"min_size": 20, "max_size": 40} if desk.kind == "sqs" else {"min_size": 1, "max_size": 12}

    phases = (
        [Phase.generate] if desk.kind == "sqs" else list(Phase)
    )  # too slow to look for the least that fails

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=phases,
    )
    @given(batch=st.lists(st.one_of(innocent, innocent, hostile), **sizes))
    def fuzz(batch: list[Case]) -> None:
        _fuzz(desk, batch, caplog)

    fuzz()


@pytest.mark.parametrize("text", [NUL, LONE, ASTRAL, "ü" * 20_000], ids=["nul", "lone", "astral", "long"])
def test_a_text_of_a_failure_takes_no_innocents_with_it(desk: Desk, text: str) -> None:
    first, second, third = desk.lease(3)
    columns = {"status": "FAILURE",
    "result": b'{"exc_type":"ValueError","exc_message":["x"],"exc_module":"builtins"}',
               "traceback": text, "children": None, "date_done": None}  # fmt: skip
    packs = desk.kind in ("postgresql", "mysql")
    bad = ("bad", "FAILURE", pack(columns), None) if packs else desk.row("bad", "FAILURE", traceback=text)
    desk.settlements.carry_out(
        desk.generation,
        [
            Ack(first, desk.row("good-1")),
            Ack(second, bad),
            DeadLetter(third, text, desk.row("good-3", "FAILURE")),
        ],
    )
    assert desk.on_lease() == 0
    if desk.keeps_rows:
        assert [desk.status(name) for name in ("good-1", "bad", "good-3")] == [
            "SUCCESS",
            "FAILURE",
            "FAILURE",
        ]
    assert len(desk.store.admin.dead()) == 1


def test_a_row_that_is_refused_is_a_failure_that_says_why(desk: Desk) -> None:
    if not desk.keeps_rows or desk.kind == "memory":
        return  # takes everything
    tag = desk.lease(1)[0]
    desk.settlements.carry_out(desk.generation, [Ack(tag, ("bad", "SUCCESS", object(), None))])  # type: ignore[arg-type]
    meta = desk.app.backend.get("bad")
    assert meta is not None
    assert meta["status"] == "FAILURE"
    assert "does not take how it ended" in meta["result"]["exc_message"][0]
    assert desk.store.admin.dead() == []


def test_a_row_whose_task_cannot_be_named_is_a_dead_letter(desk: Desk) -> None:
    if not desk.keeps_rows or desk.kind == "memory":
        return  # takes everything
    tag = desk.lease(1)[0]
    desk.settlements.carry_out(desk.generation, [Ack(tag, (LONE, *desk.row("x")[1:]))])
    (letter,) = desk.store.admin.dead()
    assert "does not take how it ended" in letter.reason
    assert letter.tag == tag
