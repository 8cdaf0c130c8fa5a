"""The rest of a chain, cut out of the body that it came in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import Task
from qworker.context import Context, untouched_body
from qworker.message.chain_text import WrittenCalls, embedded, rest_of_chain
from qworker.message.kombu_json import dumps, loads
from qworker.message.reading import NO_EMBED, Body
from tests.support.stores import make_app
from tests.unit.test_followup import run

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(['"', "]}", '],"chord":null}]', ',{"callbacks":null,"errbacks":null,"chain":[']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
calls = st.fixed_dictionaries(
    {"task": st.text(min_size=1, max_size=5), "args": st.lists(values, max_size=2), "options": values}
)
embeds = st.fixed_dictionaries(
    {
        "callbacks": st.none() | st.lists(calls, max_size=1),
        "errbacks": st.none() | st.lists(calls, max_size=1),
        "chain": st.lists(calls, min_size=1, max_size=4),
        "chord": st.none() | calls,
    }
)


@given(st.lists(values, max_size=2), st.dictionaries(st.text(max_size=4), values, max_size=2), embeds)
def test_the_text_is_that_of_the_calls(
    args: list[Any], kwargs: dict[str, Any], embed: dict[str, Any]
) -> None:
    body = dumps([args, kwargs, {**NO_EMBED, **embed}])
    read = loads(body)
    rest = rest_of_chain(body.encode(), tuple(read[0]), read[1], read[2]["chain"])
    assert list(rest) == embed["chain"][:-1]
    alone = not (embed["callbacks"] or embed["errbacks"] or embed["chord"])
    if rest and embed["callbacks"] is None and embed["errbacks"] is None and embed["chord"] is None:
        assert isinstance(rest, WrittenCalls)
    if isinstance(rest, WrittenCalls):
        assert alone
        assert json.loads(embedded(rest)) == {**NO_EMBED, "chain": embed["chain"][:-1]}


CHAIN = [{"task": "last", "args": [1]}, {"task": "next", "args": []}]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]),  # Celery's spelling
        dumps([[1], {}, {"chain": CHAIN, "callbacks": None, "errbacks": None, "chord": None}]),
        dumps([[1], {}, {**NO_EMBED, "chain": CHAIN, "more": 1}]),
        dumps([["x" * 5000], {}, {**NO_EMBED, "chain": CHAIN}]),
        json.dumps(
            [[1], {"ü": "ü"}, {**NO_EMBED, "chain": CHAIN}], ensure_ascii=False, separators=(",", ":")
        ),
        dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]) + " ",
        "nonsense",
        "",
    ],
)
def test_what_is_written_otherwise_is_written_anew(body: str) -> None:
    assert type(rest_of_chain(body.encode(), (1,), {}, CHAIN)) is list


def test_arguments_that_are_others_now_do_not_matter_to_the_rest() -> None:
    body = dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]).encode()
    assert type(rest_of_chain(body, (2,), {}, CHAIN)) is list


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, bytes.decode])
def test_a_body_that_is_no_bytes_is_let_alone(kind: Any) -> None:
    """Some brokers give text."""
    text = dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]).encode()
    body = Body((1,), {}, {**NO_EMBED, "chain": CHAIN})
    context = Context.from_message({"id": "a", "task": "t"}, body, raw=kind(text))
    assert untouched_body(context) == (text if kind is bytes else None)


@pytest.mark.parametrize("how", ["leaves", "changes", "empties"])
def test_a_task_may_change_its_chain(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, store, _ = make_app()

    @app.task(bind=True, name="first")
    def first(self: Task[..., None]) -> None:
        chain = self.request.chain
        assert chain is not None
        if how == "changes":
            chain[0]["args"] = [2]
        elif how == "empties":
            chain.clear()

    @app.task(name="next")
    def following(value: None) -> None:
        pass

    steps = [{**call, "kwargs": {}, "options": {"task_id": call["task"]}} for call in CHAIN]
    run(app, "first", chain=steps)
    if how == "empties":
        assert store.sent == []
        return
    (sent,) = store.sent
    assert sent.headers["task"] == "next"
    assert [call["args"] for call in sent.body.embed["chain"]] == [[2] if how == "changes" else [1]]
