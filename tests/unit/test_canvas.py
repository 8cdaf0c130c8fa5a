"""Workflows: construction, plans, eager runs, and published messages."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworker import QWorker, Signature, chain, chord, group, maybe_signature, signature
from qworker.canvas.membership import first_calls
from qworker.canvas.plan import plan
from qworker.errors import NotSupported, PublishError
from qworker.message.marks import JOINS, KEPT, PUBLICATION, RUN
from qworker.publishing.plain_calls import MemberCalls
from qworker.signals import before_task_publish
from tests.support.stores import KeepingStore, make_app

A, B, C, D = (Signature(name) for name in "abcd")


@pytest.fixture
def sending() -> tuple[Any, KeepingStore]:
    app, store, _ = make_app()

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    return add, store


@pytest.fixture
def eager() -> Any:
    return eager_app()


def eager_app() -> Any:
    app = QWorker("proj", broker=KeepingStore(), backend="cache+memory://", task_always_eager=True)

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="total")
    def total(values: Any) -> int:
        return summed(values)

    @app.task(name="fail")
    def fail(*args: Any) -> None:
        raise ValueError("no")

    return app.tasks


def summed(values: Any) -> int:
    return sum(map(summed, values)) if isinstance(values, list) else int(values)


# -- construction --


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (lambda: A | B | C, "a() | b() | c()"),
        (lambda: A | (B | C), "a() | b() | c()"),
        (lambda: chain(A, chain(B, C), D), "a() | b() | c() | d()"),
        (lambda: group(A, B) | C, "chord([a(), b()], c())"),
        (lambda: group(A, B) | C | D, "chord([a(), b()], c() | d())"),
        (lambda: chain(group(A, B), C), "chord([a(), b()], c())"),
        (lambda: chain(A, group(B, C), D), "a() | chord([b(), c()], d())"),
        (lambda: chain(A, group(B), C), "a() | b() | c()"),
        (lambda: group(A) | B, "chord([a()], b())"),
        (lambda: chain(A, group(), B), "a() | b()"),
        (lambda: A | group(), "a()"),
        (lambda: group(group(A, B), C), "group([group([a(), b()]), c()])"),
        (lambda: chord([A, B], C) | D, "chord([a(), b()], c() | d())"),
        (lambda: chord([A, B], C) | group(A, B), "chord([a(), b()], c()) | group([a(), b()])"),
        (lambda: chain(), "chain()"),
    ],
)
def test_operators_build_the_expected_workflow(made: Callable[[], Any], shown: str) -> None:
    assert repr(made()) == shown


@pytest.mark.parametrize(
    "flow", [A | B, group(A, B), chord([A, B], C), chain(A, group(B, C), D)], ids=lambda flow: repr(flow)
)
def test_workflow_survives_copying_json_and_pickle(flow: Any) -> None:
    for copy in (
        signature(json.loads(json.dumps(flow))),
        maybe_signature(dict(flow)),
        pickle.loads(pickle.dumps(flow)),
        deepcopy(flow),
        flow.clone(),
    ):
        assert type(copy) is type(flow)
        assert json.dumps(copy) == json.dumps(flow)


def test_link_applies_to_the_last_step_or_the_chord_body() -> None:
    one, other = A | B, chord([A, B], C)
    one.link(D)
    other.link(D)
    assert [step.options.get("link") for step in one.steps()] == [None, [D]]
    assert other.body.options["link"] == [D]
    assert "link" not in C.options


def test_link_error_of_a_chain_applies_to_each_step() -> None:
    flow = A | B
    flow.link_error(D)
    assert [step.options.get("link_error") for step in flow.steps()] == [[D], [D]]
    assert A.options == {}


def test_nested_chain_keeps_its_errbacks() -> None:
    inner = chain(A, B)
    inner.link_error(C)
    assert [step.options for step in chain(inner).steps()] == [{"link_error": [C]}] * 2


def test_frozen_workflow_keeps_its_ids(sending: tuple[Any, KeepingStore]) -> None:
    add, store = sending
    flow = add.s(1, 1) | add.s(2)
    result = flow.freeze()
    assert flow.delay().id == result.id
    (sent,) = store.sent
    assert sent.headers["id"] == result.parent.id
    assert [call["options"]["task_id"] for call in sent.body.embed["chain"]] == [result.id]


def test_task_id_of_a_workflow_is_that_of_its_last_call(sending: tuple[Any, KeepingStore]) -> None:
    add, _ = sending
    assert (add.s(1, 1) | add.s(2)).apply_async(task_id="mine").id == "mine"
    for body in (
        chain(add.s(1)),
        chain(group(add.s(1), add.s(2))),
        chord([add.s(1)], add.s(2)).set(link=[add.s(3)]),
    ):
        assert chord([add.s(1, 1)], body).apply_async(task_id="mine").id == "mine"
    assert group(add.s(1, 1), add.s(2, 2)).apply_async(task_id="mine").id == "mine"


# -- plans --


def test_plan_of_a_chain_is_its_first_call_with_the_reversed_rest() -> None:
    made = plan(chain(A, B, C), (1,), {"x": 2}, {"queue": "far", "task_id": "last"}, shared=True)
    (call,) = made.calls
    assert (call.args, call.kwargs, call.options["queue"]) == ((1,), {"x": 2}, "far")
    assert [step["task"] for step in call.options["chain"]] == ["c", "b"]
    assert made.result.id == call.options["chain"][0]["options"]["task_id"] == "last"
    assert made.result.parent.parent.id == call.options["task_id"]
    assert not made.joins


def test_immutable_chain_ignores_arguments() -> None:
    (call,) = plan(chain(A, B).set(immutable=True), (1,), {"x": 2}, shared=True).calls
    assert (call.args, call.kwargs) == ((), {})


def test_plan_of_a_chord_opens_one_join() -> None:
    made = plan(group(A, B | C) | D, shared=True)
    (join,) = made.joins
    first, second = made.calls
    assert (len(join.members), join.body.call["task"], join.body.call["options"]["task_id"]) == (
        2,
        "d",
        made.result.id,
    )
    assert first.options["headers"] == {JOINS: ((join.id, 0),)}
    assert "headers" not in second.options
    (last,) = second.options["chain"]
    assert last["options"]["headers"] == {JOINS: ((join.id, 1),)}
    assert made.result.parent.id == join.id
    assert not made.sizes


def test_nested_chord_is_a_member_through_its_body() -> None:
    made = plan(chord([chord([A, B], C), D], A), shared=True)
    inner, outer = sorted(made.joins, key=lambda join: join.body.call["task"], reverse=True)
    assert inner.body.call["options"]["headers"] == {JOINS: ((outer.id, 0),)}
    assert [call.options["headers"][JOINS] for call in made.calls] == [
        ((inner.id, 0),),
        ((inner.id, 1),),
        ((outer.id, 1),),
    ]


def test_celery_format_puts_the_body_into_each_message() -> None:
    made = plan(group(A, B) | C, shared=False)
    assert not made.joins
    assert made.sizes == {made.result.parent.id: 2}
    assert [call.options["chord"]["task"] for call in made.calls] == ["c", "c"]
    assert [call.options["group_index"] for call in made.calls] == [0, 1]


@pytest.mark.parametrize(
    ("others", "expected"),
    [({}, {"own": 1}), ({"tenant": "one"}, {"tenant": "one"}), ({PUBLICATION: 5}, {"own": 1})],
)
@pytest.mark.parametrize(
    "kind", [lambda *calls: group(calls), chain, lambda *calls: group(group(calls), calls[1])]
)
def test_the_calls_of_a_body_keep_their_headers(
    kind: Callable[..., Any], others: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = kind(A.clone().set(headers={"own": 1}), B)
    body.set(headers={RUN: "r", **others})
    headers = plan(body, shared=True).calls[0].options["headers"]
    assert {name: headers[name] for name in headers if name not in (RUN, KEPT)} == {**others, **expected}


def test_empty_chord_calls_its_body() -> None:
    made = plan(chord([], A), shared=True)
    assert [(call.task, call.args) for call in made.calls] == [("a", ([],))]
    assert not made.joins


def test_calls_after_an_empty_chord_follow_its_body() -> None:
    """If that body is a chord, they follow its body."""
    made = plan(chord([], group(A, B) | C) | group(A, B) | D, shared=True)
    assert [call.task for call in made.calls] == ["a", "b"]
    (join,) = made.joins
    assert [call["subtask_type"] for call in join.body.call.options["chain"]] == ["chord"]


def test_chord_in_a_header_is_a_member_through_its_last_call() -> None:
    """In Celery's format, its body is planned later, and must keep its place in the outer group."""
    outer = plan(chord([chord([A], group(B))], C), shared=False)
    (call,) = outer.calls
    inner = plan(call.options["chord"], ([1],), shared=False)
    (member,) = inner.calls
    collected = member.options["chord"]
    assert collected["task"] == "celery.accumulate"
    assert (collected["options"]["group_id"], collected["options"]["group_index"]) == (
        outer.result.parent.id,
        0,
    )


@pytest.mark.parametrize("shared", [True, False])
def test_plan_lists_members_of_later_chords(shared: bool) -> None:
    flow = chain(A, group(B, C | D), A, group(B, C))
    assert sorted(call["task"] for call in plan(flow, shared=shared).joined) == ["b", "d"]


def test_first_calls_of_a_body() -> None:
    body = chord([A | B, A], C | D).set(chain=[dict(B)])
    found = [(call.task, [each["task"] for each in rest]) for call, rest in first_calls(body)]
    assert sorted(found) == [("a", []), ("a", ["b"]), ("c", ["b", "d"])]
    assert list(first_calls({"task": "x", "subtask_type": "group", "kwargs": 7})) == []
    assert list(first_calls(7)) == []


def test_app_of_a_workflow_is_that_of_the_first_bound_call(sending: tuple[Any, KeepingStore]) -> None:
    add, _ = sending
    flow = chord([group([]), chord([], chain(A, add.s(1)))], B)
    assert group(group(), flow).app is add.app


def test_ignored_result_of_a_chain_is_marked_as_ignored(sending: tuple[Any, KeepingStore]) -> None:
    add, _ = sending
    result = (add.s(1, 1) | add.s(2).set(ignore_result=True)).delay()
    assert result.ignored
    assert not result.parent.ignored


def test_empty_group_and_chain_send_nothing(sending: tuple[Any, KeepingStore]) -> None:
    add, store = sending
    assert group([], app=add.app).apply_async().get() == []
    assert chain([], app=add.app).apply_async() is None
    assert not store.sent


def test_stages_of_a_long_pipeline_are_not_nested() -> None:
    flow: Any = group(A, B) | C
    for _ in range(500):
        flow = flow | group(A, B) | C
    (first, *_) = made = plan(flow, shared=True).calls
    assert len(made) == 2
    (join,) = plan(flow, shared=True).joins
    assert len(join.body.call["options"]["chain"]) == 500
    assert first.task == "a"


def test_group_is_published_in_one_push(sending: tuple[Any, KeepingStore]) -> None:
    add, store = sending
    group(add.s(number, number) | add.s(1) for number in range(50))()
    assert [len(push) for push in store.pushes] == [50]
    assert {sent.headers["group_index"] for sent in store.sent} == {None} or len(store.sent) == 50


def test_link_on_a_group_is_refused(sending: tuple[Any, KeepingStore]) -> None:
    add, _ = sending
    for option in ("link", "link_error"):
        with pytest.raises(TypeError, match="a group takes no"):
            group(add.s(1, 1)).apply_async(**{option: add.s(1)})


def test_chord_without_a_body_is_refused(sending: tuple[Any, KeepingStore]) -> None:
    add, _ = sending
    with pytest.raises(PublishError, match="the chord has no body"):
        chord([add.s(1, 1)]).delay()


def test_celery_format_needs_a_supporting_result_store(sending: tuple[Any, KeepingStore]) -> None:
    add, store = sending
    add.app.conf.update(canvas_format="celery")
    with pytest.raises(NotSupported):
        chord([add.s(1, 1)])(add.s(1))
    assert not store.sent


# -- compared with plain Python --


class Flow:
    """A workflow, and what it returns for an input, in plain Python. list_given: it returns a list."""

    def __init__(self, build: Callable[[Any], Any], value: Callable[[Any], Any], list_given: bool) -> None:
        self.build, self.value, self.list_given = build, value, list_given


def call(number: int) -> Flow:
    return Flow(
        lambda tasks: chain(tasks["total"].s(), tasks["add"].s(number)), lambda x: summed(x) + number, False
    )


def fixed(number: int) -> Flow:
    return Flow(lambda tasks: tasks["add"].si(number, 1), lambda x: number + 1, False)


def chained(flows: list[Flow]) -> Flow:
    def value(x: Any) -> Any:
        for flow in flows:
            x = flow.value(x)
        return x

    return Flow(lambda tasks: chain(*(flow.build(tasks) for flow in flows)), value, flows[-1].list_given)


def grouped(flows: list[Flow]) -> Flow:
    return Flow(
        lambda tasks: group(flow.build(tasks) for flow in flows),
        lambda x: [flow.value(x) for flow in flows],
        True,
    )


def joined(flows: list[Flow]) -> Flow:
    *header, body = flows
    return Flow(
        lambda tasks: chord([flow.build(tasks) for flow in header], body.build(tasks)),
        lambda x: body.value([flow.value(x) for flow in header]),
        body.list_given,
    )


FLOWS = st.recursive(
    st.integers(0, 9).map(call) | st.integers(0, 9).map(fixed),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(chained)
        | st.lists(inner, min_size=2, max_size=3).map(grouped)
        | st.lists(inner, min_size=2, max_size=4).map(joined)
    ),
    max_leaves=10,
)
TASKS = eager_app()


@settings(deadline=None)
@given(FLOWS)
def test_value_equals_that_of_plain_python(flow: Flow) -> None:
    result = flow.build(TASKS).apply(([1, 2],))
    # A nested group is flattened, and a group of one is its member: only the sum is compared.
    assert summed(result.get()) == summed(flow.value([1, 2]))


def test_eager_error_is_raised_where_the_value_is_needed(eager: Any) -> None:
    with pytest.raises(ValueError, match="no"):
        (eager["fail"].s() | eager["add"].s(1)).apply()
    with pytest.raises(ValueError, match="no"):
        chord([eager["fail"].s()], eager["total"].s()).apply()
    result = group(eager["fail"].s(), eager["add"].s(1, 1)).apply()
    assert [each.state for each in result.results] == ["FAILURE", "SUCCESS"]


def test_eager_results_have_parents(eager: Any) -> None:
    add, total = eager["add"], eager["total"]
    result = chain(add.s(1, 1), group(add.s(1), add.s(2)), total.s(), add.s(1)).apply()
    assert result.get() == 8
    assert result.parent.get() == 7
    assert result.parent.parent.get() == [3, 4]
    assert result.parent.parent.parent.get() == 2


@pytest.mark.parametrize("shared", [True, False])
def test_member_is_the_same_on_the_fast_and_slow_path(
    sending: tuple[Any, KeepingStore], shared: bool
) -> None:
    """Members with few options are written from a template, unless before_task_publish has receivers."""
    add, store = sending
    flow = plan(group(add.s(1, y="ü"), add.s(2, 2), add.s(5, 6) | add.s(7)) | add.s(3), shared=shared)
    publisher = add.app.publisher
    short_way = MemberCalls(publisher._plain_member, None, None)
    assert all(map(short_way.envelope, flow.calls))

    def sent() -> list[tuple[Any, ...]]:
        store.pushes.clear()
        publisher.publish(list(flow.calls), {})
        return [(each.headers, each.properties, each.body, each.envelope.queue) for each in store.sent]

    short = sent()
    assert [headers.get("group_index") for headers, *_ in short] == [0, 1, None]
    joins = [headers.get(JOINS) for headers, *_ in short]
    assert joins == ([[[flow.joins[0].id, 0]], [[flow.joins[0].id, 1]], None] if shared else [None] * 3)
    before_task_publish.connect(observe := lambda **_: None)
    try:
        assert sent() == short
    finally:
        before_task_publish.disconnect(observe)


def test_options_of_a_chain_go_to_the_first_or_last_step() -> None:
    steps = [Signature("a"), Signature("b", options={"group_id": "mine"})]
    made = chain(*steps).set(headers={"h": 1}, group_id="given", group_index=2, countdown=3)
    first, last = made.unchained()
    assert first.options == {"headers": {"h": 1}, "countdown": 3}
    assert last.options == {"group_id": "mine", "group_index": 2}
    assert [each.options for each in steps] == [{}, {"group_id": "mine"}]


def test_member_keeps_its_own_group_id() -> None:
    members = [Signature("a", options={"group_id": "mine"}), Signature("b")]
    calls = plan(group(members).set(task_id="all"), shared=True).calls
    assert [(call.options["group_id"], call.options["group_index"]) for call in calls] == [
        ("mine", 0),
        ("all", 1),
    ]
