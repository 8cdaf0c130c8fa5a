"""Signatures: calls that have not been made yet."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from qworker import Task
from qworker.canvas.signatures import Signature, signatures
from qworker.errors import NotAvailable
from tests.support.stores import make_app


def test_signature_is_a_serializable_dict() -> None:
    call = Signature("proj.add", (1,), {"y": 2}, {"queue": "q"})
    assert json.loads(json.dumps(call)) == {
        "task": "proj.add", "args": [1], "kwargs": {"y": 2}, "options": {"queue": "q"}, "subtask_type": None,
        "immutable": False,
    }  # fmt: skip
    assert Signature(json.loads(json.dumps(call))) == call
    assert pickle.loads(pickle.dumps(call)) == call


def test_clone_prepends_arguments_and_keeps_the_original() -> None:
    call = Signature("t", (3,), {"a": 1}, {"queue": "q"})
    merged = call.clone((1, 2), {"b": 2}, priority=5)
    assert (merged.args, merged.kwargs, merged.options) == (
        (1, 2, 3),
        {"a": 1, "b": 2},
        {"queue": "q", "priority": 5},
    )
    assert (call.args, call.kwargs, call.options) == ((3,), {"a": 1}, {"queue": "q"})


def test_clone_of_an_immutable_signature_takes_options_only() -> None:
    merged = Signature("t", (3,), immutable=True).clone((1,), {"b": 2}, priority=5)
    assert (merged.args, merged.kwargs, merged.options, merged.immutable) == ((3,), {}, {"priority": 5}, True)


def test_identified_signature_keeps_its_id() -> None:
    frozen = Signature("t").identified()
    assert frozen.identified().options["task_id"] == frozen.options["task_id"]
    assert "task_id" not in Signature("t").options


def test_repr_looks_like_a_call() -> None:
    assert repr(Signature("proj.add", (1,), {"y": "z"})) == "proj.add(1, y='z')"


def test_signature_sends_the_call() -> None:
    app, store, _ = make_app()

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    result = add.s(2).set(queue="far").delay(1)
    app.signature("elsewhere.unknown", (5,)).apply_async(priority=3)
    first, second = store.sent
    assert (first.headers["id"], first.body.args, first.envelope.queue) == (result.id, (1, 2), "far")
    assert (second.headers["task"], second.body.args, second.envelope.priority) == (
        "elsewhere.unknown",
        (5,),
        3,
    )
    assert add.si(1).immutable


@pytest.mark.parametrize("value", ["proj.add", [1], {"args": []}, 5])
def test_values_that_are_not_signatures_are_rejected(value: object) -> None:
    with pytest.raises(TypeError, match="link takes a signature"):
        signatures(value, "link", make_app()[0])


def test_signatures_accepts_one_several_or_none() -> None:
    app, _, _ = make_app()
    assert signatures(None, "link", app) == []
    assert [call.task for call in signatures({"task": "a"}, "link", app)] == ["a"]
    assert [call.task for call in signatures([Signature("a"), {"task": "b"}], "link", app)] == ["a", "b"]


def test_pipe_operator_needs_a_signature() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = Signature("a", (1,)) | (lambda: None)


def make_add() -> tuple[Any, Any]:
    app, store, _ = make_app()

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x - y

    return add, store


def test_calling_a_signature_runs_the_task_locally() -> None:
    add, store = make_add()
    assert add.s(2)(3) == 1
    assert add.si(5, 1)(9) == 4
    assert add.s(y=2)(3, y=1) == 2
    assert add.s(2, 1).apply().get() == 1
    assert (add.s(2, 1).type, add.s(2, 1).name) == (add, "add")
    assert not store.sent


def test_set_modifies_the_signature_in_place() -> None:
    add, store = make_add()
    call = add.s(2, 1)
    assert call.set(queue="far", immutable=True) is call
    call.delay()
    assert (call.immutable, store.sent[0].envelope.queue) == (True, "far")


def test_link_adds_each_signature_once_and_returns_it() -> None:
    add, store = make_add()
    call, after, error = add.s(2, 1), add.s(10), add.s(20)
    assert call.link(after) is after
    call.link(after)
    assert call.link_error(error) is error
    assert call.on_error(error) is call
    assert (call.options["link"], call.options["link_error"]) == ([after], [error])
    call.delay()
    assert [each["args"] for each in store.sent[0].body.embed["callbacks"]] == [[10]]


def test_freeze_returns_the_result_before_the_call() -> None:
    add, store = make_add()
    call = add.s(2, 1)
    result = call.freeze()
    assert (call.id, call.freeze().id) == (result.id, result.id)
    assert call.apply_async().id == result.id == store.sent[0].headers["id"]
    assert add.s(1).freeze("my-id").id == "my-id"


def test_replace_and_partial_keep_the_original() -> None:
    add, _ = make_add()
    call = add.signature((2, 1), {}, {"queue": "q"}, countdown=3)
    other = call.replace(args=(5, 4), options={})
    assert (other.args, other.options, call.args, call.options) == (
        (5, 4),
        {},
        (2, 1),
        {"queue": "q", "countdown": 3},
    )
    assert add.s(1).partial((5,)).args == (5, 1)
    assert Signature.from_dict(call, app=add.app) == call


def test_ways_to_make_a_signature() -> None:
    add, _ = make_add()
    made = [
        add.app.signature(add, (2, 1), countdown=3),
        add.app.subtask("add", args=(2, 1), options={"countdown": 3}),
        Signature(add, (2, 1), countdown=3),
        add.subtask((2, 1), countdown=3),
        add.app.signature(add.signature((2, 1), countdown=3)),
    ]
    assert all(dict(call) == dict(made[0]) for call in made)
    assert add.app.signature("add", (1,), immutable=True).immutable


@pytest.mark.parametrize("name", ["append_to_list_option", "election", "register_type"])
def test_unavailable_signature_attributes_explain_themselves(name: str) -> None:
    with pytest.raises(NotAvailable, match=rf"Signature\.{name} is not in qworker: "):
        getattr(Signature("a"), name)


@pytest.mark.parametrize(
    "name", ["add_around", "delay_on_commit", "apply_async_on_commit", "send_event", "start_strategy"]
)
def test_unavailable_task_attributes_explain_themselves(name: str) -> None:
    add, _ = make_add()
    with pytest.raises(NotAvailable, match=rf"task\.{name} is not in qworker: "):
        getattr(add, name)


@pytest.mark.parametrize("name", ["Request", "Strategy", "acks_on_failure", "request_stack"])
def test_unsupported_attributes_of_task_subclasses_are_rejected(name: str) -> None:
    with pytest.raises(NotAvailable, match=rf"class Mine: {name} is not in qworker: "):
        type("Mine", (Task,), {name: None})


@pytest.mark.parametrize(
    "name", ["shared", "backend", "lazy", "acks_on_timeout", "retry_on_worker_lost", "Request"]
)
def test_unsupported_celery_options_name_the_alternative(name: str) -> None:
    app, _, _ = make_app()
    with pytest.raises(NotAvailable, match=rf"task a: {name} is not in qworker: "):
        app.task(name="a", **{name: None})(lambda: None)
