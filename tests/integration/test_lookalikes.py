"""Data that looks like internal markup, in every place for user data: it is delivered unchanged, or refused
when it is sent."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qworker import QWorker, chain, chord, graph, group
from qworker.beat.serialization import from_json, to_json
from qworker.canvas.join_body import JoinBody, storable
from qworker.canvas.plan import SEGMENT
from qworker.errors import (
    DamagedResult,
    EncodeError,
    InvalidSchedule,
    QWorkerError,
    SpoolError,
)
from qworker.message.kombu_json import dumps
from qworker.message.protocol import TaskMessage, encode
from qworker.spooler.arguments import read_arguments, write_arguments
from qworker.testing import FakeClock, MemoryStore, StepWorker

pytestmark = pytest.mark.integration

CALL = {"task": "same", "args": [1], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}
GROUP = {**CALL, "task": "celery.group", "subtask_type": "group", "kwargs": {"tasks": [CALL]}}
ERROR = {"exc_type": "ValueError", "exc_message": ["no"], "exc_module": "builtins"}
TAG = {"__type__": "invoice", "__value__": 3}
MARKUP: list[Any] = [
    *(TAG, {"__type__": "datetime", "__value__": "2030-01-02"}, {"__value__": 1, "__type__": []}),
    *({**TAG, "more": 1}, {"__type__": "uuid"}, {"a": [{"b": TAG}]}, '{"__type__":"uuid","__value__":1}'),
    *(CALL, GROUP, [CALL], ERROR, [ERROR, None], {"status": "FAILURE", "result": ERROR}),
    *([["id", None], None], {"callbacks": [CALL], "errbacks": None, "chain": [CALL], "chord": CALL}),
    *("SUCCESS\nanother", "!!python/name:os", "%(x)s {y}", "\x00", "\x85\u2028", {"$oid": "5"}),
    *({"$ref": "x"}, {"a.b": {"$set": 1}}, {"": None}, {"self": 1}),
]  # fmt: skip
KEYS = st.sampled_from(["__type__", "__value__", "task", "args", "kwargs", "exc_type", "a"]) | st.text(
    max_size=3
)
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(MARKUP)
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6
)
SERIALIZERS = ("json", "yaml", "msgpack", "pickle")


class Rig:
    """An app with a StepWorker."""

    def __init__(self, serializer: str, results: str | None = None, other: str = "json") -> None:
        clock, results = FakeClock(), results or serializer
        accepted = ["json", serializer, results, other]
        self.app = QWorker(
            "lookalikes", broker=MemoryStore(clock), backend="cache+memory://", clock=clock,
            task_serializer=serializer, result_serializer=results, set_as_current=False,
            accept_content=accepted, result_accept_content=accepted,
            **({"security_key": "k" * 32} if "pickle" in accepted else {}),
        )  # fmt: skip
        self.seen: list[Any] = []

        @self.app.task(name="same")
        def same(*args: Any, **kwargs: Any) -> Any:
            return kwargs if kwargs else args[0] if len(args) == 1 else list(args)

        @self.app.task(name="stored")
        def stored(number: int) -> Any:
            return self.value

        @self.app.task(name="note", bind=True)
        def note(task: Any, /, *args: Any, **kwargs: Any) -> None:
            self.seen.append((args, kwargs, task.request.headers or {}, task.request.stamps or {}))

        self.same, self.stored, self.note = same, stored, note
        self.value: Any = None
        self.worker = StepWorker(self.app)

    def of(self, call: Any, **options: Any) -> Any:
        result = call.apply_async(**options)
        self.worker.run()
        return result.get(timeout=0)

    def noted(self, call: Any, **options: Any) -> tuple[Any, ...]:
        """Return what note() got. Raises EncodeError if an earlier result cannot be stored."""
        self.seen.clear()
        result = call.apply_async(**options)
        self.worker.run()
        if not self.seen:
            with pytest.raises(QWorkerError) as failure:
                result.get(timeout=0)
            assert "cannot be serialised" in str(failure.value)
            raise EncodeError(str(failure.value))
        (found,) = self.seen
        return found


def _stored(rig: Rig, value: Any) -> Any:
    rig.value = value
    return rig.of(rig.stored.s(1))


def _after(rig: Rig, value: Any) -> Any:
    """Return what a task gets from the previous step of a chain."""
    rig.value = value
    return rig.noted(chain(rig.stored.s(1), rig.note.s()))[0][0]


def _members(rig: Rig, value: Any) -> Any:
    rig.value = value
    return rig.noted(chord([rig.stored.s(1), rig.stored.s(2)], rig.note.s()))[0][0][1]


PLACES: dict[str, Callable[[Rig, Any], Any]] = {
    "an argument": lambda rig, value: rig.noted(rig.note.s(value))[0][0],
    "a keyword": lambda rig, value: rig.noted(rig.note.s(x=value))[1]["x"],
    "all keywords": lambda rig, value: (
        rig.noted(rig.note, kwargs=value)[1] if isinstance(value, dict) else value
    ),
    "a result": _stored,
    "what the next of a chain gets": _after,
    "what the body of a chord gets": _members,
    "an argument later in a chain": lambda rig, value: (
        rig.noted(chain(rig.same.s(1), rig.note.si(value)))[0][0]
    ),
    "an argument of a body": lambda rig, value: rig.noted(chord([rig.same.s(1)], rig.note.si(value)))[0][0],
    "an argument of a link": lambda rig, value: rig.noted(rig.same.s(1), link=rig.note.si(value))[0][0],
    "an argument in a group": lambda rig, value: rig.noted(group(rig.note.s(value)))[0][0],
    "an argument in a graph": lambda rig, value: rig.noted(graph({"a": rig.note.si(value)}))[0][0],
    "an argument later in a graph": lambda rig, value: (
        rig.noted(graph({"a": rig.same.s(1), "b": rig.note.s(of=value)}, {"b": {"x": "a"}}))[1]["of"]
    ),
    "an argument in a later header": lambda rig, value: (
        rig.noted(chord([rig.same.s(1)], chord([rig.note.si(value)], rig.same.si(2))))[0][0]
    ),
    "a header": lambda rig, value: rig.noted(rig.note.s(), headers={"x_own": value})[2]["x_own"],
}  # fmt: skip


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_each_serializer_carries_calls(serializer: str) -> None:
    """YAML refused signatures, and MessagePack wrote damaged groups."""
    rig = Rig(serializer)
    several = group(rig.note.si(1), rig.same.si(2))
    for call in (
        chord([rig.same.s(1)], chord([rig.note.si(1)], rig.same.si(2))),
        chain(rig.same.s(1), several),
        chain(rig.same.s(1), several, rig.same.s()),
        graph({"a": rig.note.si(1), "b": rig.same.s(2)}, {"b": {"x": "a"}}),
    ):
        assert rig.noted(call)[0] == (1,)
    assert rig.noted(rig.same.s(1), link=several)[0] == (1,)
    for argument in (several, {"calls": [several]}):
        (found,), *_ = rig.noted(rig.note.s(argument))
        assert json.loads(json.dumps(found)) == json.loads(dumps(argument))


def test_pickled_messages_need_no_qworker_to_be_read() -> None:
    """Celery reads their links, too."""
    rig = Rig("pickle")
    several = group(rig.note.si(1), rig.same.si(2))
    message = TaskMessage(task="a", id="1", args=(1,), serializer="pickle", callbacks=[several])
    body = encode(message).body
    assert b"qworker" not in body
    assert pickle.loads(body)[2]["callbacks"] == [dict(several)]


OF_CALLS = {
    **{place: PLACES[place] for place in PLACES if "argument" in place or "keyword" in place},
    "an argument of a late step": lambda rig, value: (
        rig.noted(chain(*[rig.same.s(1)] * SEGMENT, rig.note.si(value)))[0][0]
    ),
}  # fmt: skip
"""Places of arguments. The last one takes seconds with YAML."""


@pytest.mark.parametrize("results", ["json", "yaml", "msgpack"])
@pytest.mark.parametrize("place", OF_CALLS)
def test_arguments_may_be_what_results_cannot_contain(results: str, place: str) -> None:
    """With results in the same store as joins, whose bodies have these arguments."""
    value = {"instant": {1, 2}, "kind": Rig}
    assert OF_CALLS[place](Rig("pickle", results), value) == value


@pytest.mark.parametrize("place", OF_CALLS)
def test_arguments_do_not_become_what_results_can_contain(place: str) -> None:
    """A tuple became a list in a body and a late step, but not in other calls."""
    for value in ({"some": (1, (2,))}, {"keys": {1: 2}}, {"tag": TAG}):
        assert repr(OF_CALLS[place](Rig("pickle", "json"), value)) == repr(value)


@pytest.mark.parametrize("serializer", ["json", "yaml", "msgpack"])
@pytest.mark.parametrize("place", [place for place in OF_CALLS if "late" not in place])
def test_arguments_that_no_message_can_contain_are_refused_by_the_call(serializer: str, place: str) -> None:
    """Also where another accepted serializer could write them: then a body failed when its join had ended.
    (A late step and a later header are calls of a workflow, which still fail then.)"""
    rig = Rig(serializer, "json", other="pickle")
    if place == "an argument in a later header":
        with pytest.raises(QWorkerError, match="cannot be serialised"):
            OF_CALLS[place](rig, {"kind": Rig})
        return
    with pytest.raises(EncodeError):
        OF_CALLS[place](rig, {"kind": Rig})
    assert rig.worker.parts.state.totals.total() == 0, "no member was sent"


@pytest.mark.parametrize("value", [{1, 2}, (1, (2,)), {1: 2}], ids=repr)
def test_workflows_of_tasks_with_a_serializer_of_their_own_keep_arguments(value: Any) -> None:
    """They were refused, because the serializer of the settings cannot write them."""
    rig = Rig("json", other="pickle")

    @rig.app.task(name="own", serializer="pickle")
    def own(*args: Any) -> None:
        rig.seen.append(args)

    several = group(own.si(value), own.si(value))
    graphed = graph({"a": rig.same.s(1), "b": several}, {"b": ["a"]})
    for flow in (
        chord([rig.same.s(1)], several),
        graphed,
        chord([rig.same.s(1)], chord([own.si(value)], own.si(value))),
    ):
        rig.seen.clear()
        flow.apply_async()
        rig.worker.run()
        assert [repr(each) for each in rig.seen] == [repr((value,))] * 2
    late = chain(*[own.si(0)] * (SEGMENT + 7), own.si(value))
    late.apply_async()
    rig.worker.run()
    assert repr(rig.seen[-1]) == repr((value,))


def test_body_is_not_written_by_a_serializer_that_cannot_read_it() -> None:
    """MessagePack writes numbers as keys, and refuses to read them: the join ended without its body."""
    rig = Rig("yaml", "json", other="msgpack")
    body = rig.note.si({1: 2}).set(serializer="msgpack")
    with pytest.raises(EncodeError, match="the key 1 of a dictionary is not text"):
        chord([rig.same.s(1)], body).apply_async()


def test_plain_body_does_not_need_its_serializer_to_be_accepted_by_the_joiner() -> None:
    """Workers may accept a serializer one after the other."""
    rig = Rig("msgpack", "json")
    fields = JoinBody(rig.note.s({"x": [1, None, "2"]})).fields()
    assert storable(fields, rig.app) is fields


@pytest.fixture(scope="module", params=SERIALIZERS)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


def exactly(one: Any, other: Any) -> bool:
    """Return whether both are equal, with equal types: 1 is neither 1.0 nor True. YAML sorts keys."""
    return one == other and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def check(rig: Rig, place: str, value: Any) -> None:
    try:
        found = PLACES[place](rig, value)
    except EncodeError:
        assert "__type__" in repr(value) or rig.app.conf.task_serializer != "json", "it is not a tag"
        rig.worker.run()
    else:
        assert exactly(found, value)


@pytest.mark.parametrize("place", PLACES)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(VALUES)
def test_random_value_is_unchanged_or_refused(rig: Rig, place: str, value: Any) -> None:
    check(rig, place, value)


@pytest.mark.parametrize("place", PLACES)
def test_markup_is_unchanged_or_refused(rig: Rig, place: str) -> None:
    for value in MARKUP:
        check(rig, place, value)


@given(VALUES)
@example(TAG)
def test_value_in_a_schedule_entry_is_unchanged_or_refused(value: Any) -> None:
    try:
        text = to_json({"args": [value], "kwargs": {"x": value}})
    except InvalidSchedule:
        assert "__type__" in repr(value)
    else:
        assert exactly(from_json(text), {"args": [value], "kwargs": {"x": value}})


@given(VALUES)
def test_value_in_a_spool_file_is_unchanged(value: Any) -> None:
    try:
        pairs = write_arguments((value,), {"x": value})
    except SpoolError:
        raise AssertionError("plain data should be accepted") from None
    assert read_arguments({key.decode(): text for key, text in pairs.items()}) == ((value,), {"x": value})


def test_undecodable_result_of_celery_raises_damaged_result() -> None:
    """Celery stores it, but cannot read it either."""
    rig = Rig("json")
    backend = rig.app.backend
    meta = backend.codec.encode(backend.meta("x", "SUCCESS", "hole")).replace(
        b'"hole"', b'{"__type__":"invoice","__value__":3}'
    )
    with pytest.raises(DamagedResult):
        backend.codec.decode(meta, "x")
