"""Signatures: calls that are not made yet."""

from __future__ import annotations

import json
import pickle

import pytest

from qworker.signature import Signature, signatures
from tests.unit.stores import make_app


def test_it_is_the_dict_that_travels() -> None:
    call = Signature("proj.add", (1,), {"y": 2}, {"queue": "q"})
    assert json.loads(json.dumps(call)) == {
        "task": "proj.add", "args": [1], "kwargs": {"y": 2}, "options": {"queue": "q"}, "subtask_type": None,
        "immutable": False,
    }  # fmt: skip
    assert Signature(json.loads(json.dumps(call))) == call
    assert pickle.loads(pickle.dumps(call)) == call


def test_later_arguments_go_first_and_leave_the_original_alone() -> None:
    call = Signature("t", (3,), {"a": 1}, {"queue": "q"})
    merged = call.clone((1, 2), {"b": 2}, priority=5)
    assert (merged.args, merged.kwargs, merged.options) == (
        (1, 2, 3),
        {"a": 1, "b": 2},
        {"queue": "q", "priority": 5},
    )
    assert (call.args, call.kwargs, call.options) == ((3,), {"a": 1}, {"queue": "q"})


def test_an_immutable_one_takes_options_only() -> None:
    merged = Signature("t", (3,), immutable=True).clone((1,), {"b": 2}, priority=5)
    assert (merged.args, merged.kwargs, merged.options, merged.immutable) == ((3,), {}, {"priority": 5}, True)


def test_frozen_once_it_keeps_its_id() -> None:
    frozen = Signature("t").freeze()
    assert frozen.freeze().options["task_id"] == frozen.options["task_id"]
    assert "task_id" not in Signature("t").options


def test_it_shows_itself_as_a_call() -> None:
    assert repr(Signature("proj.add", (1,), {"y": "z"})) == "proj.add(1, y='z')"


def test_it_makes_the_call() -> None:
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
def test_what_is_no_signature_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="link takes a signature"):
        signatures(value, "link")


def test_one_or_many_or_none() -> None:
    assert signatures(None, "link") == []
    assert [call.task for call in signatures({"task": "a"}, "link")] == ["a"]
    assert [call.task for call in signatures([Signature("a"), {"task": "b"}], "link")] == ["a", "b"]


def test_a_chain_says_that_there_is_none_yet() -> None:
    with pytest.raises(TypeError, match=r"chains are not in this version.*link="):
        _ = Signature("a", (1,)) | Signature("b")
