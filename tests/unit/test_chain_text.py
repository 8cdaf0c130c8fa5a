"""The rest of a chain, cut out of the body of its message without decoding it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker import QWorker, Task
from qworker.components.pool.preparation import Prepared, prepare
from qworker.errors import InvalidTaskMessage
from qworker.message.chain_text import CarriedChain, WrittenCalls, decode_carrier, embedded
from qworker.message.context import carried_chain
from qworker.message.exceptions import exception_to_dict
from qworker.message.kombu_json import MAX_DEPTH, dumps
from qworker.message.protocol import TaskMessage, encode
from qworker.message.reading import NO_EMBED, Body, decode_body, parse_headers, parse_properties
from qworker.tasks import termination
from qworker.tasks.execution import execute
from qworker.tasks.outcome import FAILURE, Outcome
from qworker.transports.lease import Envelope, Leased
from tests.support.stores import make_app, read

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
plain_calls = st.lists(values, max_size=2).map(lambda args: {"task": "a.task", "args": args})
embeds = st.fixed_dictionaries(
    {
        "callbacks": st.none() | st.lists(calls, max_size=1),
        "errbacks": st.none() | st.lists(calls, max_size=1),
        "chain": st.lists(calls, min_size=1, max_size=4),
        "chord": st.none() | calls,
    }
)


PROPERTIES = parse_properties(None)
ACCEPT = frozenset({"json"})


def whole(body: Body) -> Body:
    """Return *body* with its chain decoded."""
    chain = body.embed["chain"]
    return body._replace(embed={**body.embed, "chain": chain.read()}) if type(chain) is CarriedChain else body


@given(st.lists(values, max_size=2), st.dictionaries(st.text(max_size=4), values, max_size=2), embeds)
def test_lazily_read_chain_equals_the_decoded_chain(
    args: list[Any], kwargs: dict[str, Any], embed: dict[str, Any]
) -> None:
    body = dumps([args, kwargs, {**NO_EMBED, **embed}]).encode()
    try:
        expected = decode_body(body, {}, PROPERTIES, ACCEPT)
    except InvalidTaskMessage:  # a task name with unprintable characters
        return
    made = decode_carrier(body, {}, PROPERTIES, ACCEPT)
    assert whole(made) == expected
    chain = made.embed["chain"]
    if type(chain) is CarriedChain:
        assert json.loads(embedded(chain.rest)) == {**NO_EMBED, "chain": embed["chain"][:-1]}


@given(st.lists(plain_calls, min_size=2, max_size=4))
def test_only_the_next_call_of_a_chain_is_decoded(chain: list[dict[str, Any]]) -> None:
    body = dumps([[1], {}, {**NO_EMBED, "chain": chain}]).encode()
    made = decode_carrier(body, {}, PROPERTIES, ACCEPT).embed["chain"]
    assert made == CarriedChain(chain[-1], WrittenCalls(dumps(chain[:-1])[1:-1]))


CHAIN = [{"task": "last", "args": [1]}, {"task": "next", "args": []}]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]),  # spaces as in Celery's JSON
        dumps([[1], {}, {"chain": CHAIN, "callbacks": None, "errbacks": None, "chord": None}]),
        dumps([[1], {}, {**NO_EMBED, "chain": CHAIN, "more": 1}]),
        dumps([["x" * 5000], {}, {**NO_EMBED, "chain": CHAIN}]),
        dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}]) + " ",
        dumps([[1], {}, {**NO_EMBED, "chain": CHAIN[:1]}]),
        dumps([[1], {}, {**NO_EMBED, "chain": [*CHAIN, *CHAIN]}]).replace(
            '},{"task":"next"', '}, {"task":"next"'
        ),
        dumps([[1], {}, {**NO_EMBED, "chain": [CHAIN[0], {"task": "next", "link": CHAIN}]}]),
    ],
)
def test_body_in_another_format_is_decoded_completely(body: str) -> None:
    made = decode_carrier(body.encode(), {}, PROPERTIES, ACCEPT)
    assert type(made.embed["chain"]) is list
    assert made == decode_body(body.encode(), {}, PROPERTIES, ACCEPT)


OURS = dumps([[1], {}, {**NO_EMBED, "chain": CHAIN}])


@pytest.mark.parametrize(
    "body",
    [
        OURS.replace('"next"', "5"),
        OURS.replace('"task":"next"', '"task":"next",'),
        OURS.replace("[1]", "[1", 1),
        OURS.replace("[1]", "1", 1),
        OURS.replace(',"args":[]', ',"args":[]},5,{"task":"more"'),
        OURS.replace('"args":[]', f'"args":{"[" * MAX_DEPTH}{"]" * MAX_DEPTH}'),
    ],
)
def test_invalid_next_call_refuses_the_message(body: str) -> None:
    with pytest.raises(InvalidTaskMessage) as expected:
        decode_body(body.encode(), {}, PROPERTIES, ACCEPT)
    with pytest.raises(InvalidTaskMessage) as raised:
        decode_carrier(body.encode(), {}, PROPERTIES, ACCEPT)
    assert str(raised.value) == str(expected.value)


def test_size_limit_and_encodings_apply() -> None:
    body = OURS.encode()
    with pytest.raises(InvalidTaskMessage, match="over the limit"):
        decode_carrier(body, {}, PROPERTIES, ACCEPT, limit=len(body) - 1)
    for kind in (bytearray, memoryview, bytes.decode):  # some brokers return text
        given: Any = kind(body)
        assert decode_carrier(given, {}, PROPERTIES, ACCEPT).embed["chain"] == CHAIN
    wide = {**PROPERTIES, "content_encoding": "utf-16"}
    assert decode_carrier(OURS.encode("utf-16"), {}, wide, ACCEPT).embed["chain"] == CHAIN
    latin = body.replace(b"last", b"l\xe4st")
    with pytest.raises(InvalidTaskMessage):
        decode_carrier(latin, {}, PROPERTIES, ACCEPT)


DAMAGED = ['{"task":5}', '{"a":}', "[" * 5000 + "{}", "5,{}", '{"task":"a"}],"more":[{}']


@pytest.mark.parametrize("rest", DAMAGED)
def test_damaged_rest_is_reported_when_it_is_read(rest: str) -> None:
    with pytest.raises(InvalidTaskMessage):
        WrittenCalls(rest).read()


def _end(app: QWorker, prepared: Prepared) -> Outcome:
    """End the task without a run."""
    error = exception_to_dict(KeyError("why"))
    return termination.report(app, prepared.task, prepared.context, FAILURE, "why", "FAILURE", error)


def first_of(chain: str, how: str = "leaves") -> tuple[Outcome, list[Envelope]]:
    """Run a task whose message has *chain*; return its outcome, and what it sent."""
    app, store, _ = make_app()

    @app.task(bind=True, name="first")
    def first(self: Task[..., None]) -> None:
        if how == "fails":
            raise KeyError
        if how == "leaves":
            return
        steps = self.request.chain
        assert steps is not None
        if how == "changes":
            steps[0]["args"] = [2]
        elif how == "empties":
            steps.clear()

    @app.task(name="next")
    def following(value: None) -> None:
        pass

    sent = encode(TaskMessage(task="first", id="parent", root_id="root"))
    body = f'[[],{{}},{{"callbacks":null,"errbacks":null,"chain":[{chain}],"chord":null}}]'.encode()
    leased = Leased(1, "celery", 0, None, 0, False, 0, sent.headers, sent.properties, body)
    prepared = prepare(app, ACCEPT, "h", parse_headers(sent.headers), leased)
    assert carried_chain(prepared.context) is not None
    if how == "ended":
        return _end(app, prepared), [each for push in store.pushes for each in push]
    return execute(app, prepared.task, prepared.context, prepared.body), [
        each for push in store.pushes for each in push
    ]


STEPS = [
    {"task": name, "args": [1], "kwargs": {}, "options": {"task_id": name}, "immutable": True}
    for name in ("last", "next")
]
LAST, NEXT = map(dumps, STEPS)


@pytest.mark.parametrize("how", ["leaves", "reads", "changes", "empties"])
def test_task_can_change_its_chain(how: str) -> None:
    outcome, sent = first_of(f"{LAST},{NEXT}", how)
    assert outcome.kind == "success"
    if how == "empties":
        assert sent == []
        return
    following = read(sent[0])
    assert following.headers["task"] == "next"
    assert [call["args"] for call in following.body.embed["chain"]] == [[2] if how == "changes" else [1]]


@pytest.mark.parametrize("rest", DAMAGED[:-1])
@pytest.mark.parametrize("how", ["leaves", "reads", "fails", "ended"])
def test_damaged_rest_of_a_chain_raises_no_unexpected_error(how: str, rest: str) -> None:
    """The message with the damaged call is refused when it is received."""
    outcome, sent = first_of(f"{rest},{NEXT}", how)
    if how == "leaves":
        assert (outcome.kind, len(sent)) == ("success", 1)
        with pytest.raises(InvalidTaskMessage):
            read(sent[0])
        return
    assert (outcome.kind, sent) == ("failure", [])
    if how == "reads":
        assert "InvalidTaskMessage" in outcome.text
    else:
        assert [row[0] for row, _ in outcome.follow] == ["next"]
