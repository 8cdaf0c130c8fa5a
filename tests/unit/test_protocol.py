"""Encoding messages: the format Celery expects, templates equal to encode(), and retries."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import ConfigurationError, EncodeError, PublishError
from qworker.message.protocol import (
    HeaderTemplate,
    TaskMessage,
    decode_body,
    encode,
    encode_parts,
    origin,
    parse_headers,
    parse_properties,
    retry_headers,
)
from qworker.message.reading import HEADERS, MAX_HEADERS, NO_EMBED

ACCEPT = frozenset({"json", "pickle"})
SIGNATURE = {
    "task": "proj.next",
    "args": [1],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
    "immutable": False,
}

NAME = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.dates()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGS = st.lists(JSON, max_size=4).map(tuple)
KWARGS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
TIME = st.none() | st.datetimes().map(lambda moment: moment.isoformat() + "+00:00")
LIMIT = st.none() | st.integers(0, 10**6) | st.floats(0, 1e6)
SIGNATURES = st.none() | st.lists(st.just(SIGNATURE), max_size=2)
MESSAGES = st.builds(
    TaskMessage, NAME, NAME, ARGS, KWARGS, SIGNATURES, SIGNATURES, SIGNATURES,
    st.none() | st.just(SIGNATURE), TIME,
    TIME, st.none() | NAME, st.none() | NAME, st.none() | st.integers(0, 9), st.integers(0, 9),
    st.tuples(LIMIT, LIMIT),
    st.none() | NAME, st.none() | NAME, st.booleans(), st.integers(0, 3),
    headers=st.dictionaries(NAME.map(lambda name: f"x-{name}"), JSON, max_size=2), reply_to=st.none() | NAME,
    compression=st.sampled_from([None, None, "gzip"]), serializer=st.sampled_from(["json", "json", "pickle"]),
)  # fmt: skip


@given(MESSAGES)
def test_encoded_message_is_decoded_unchanged(message: TaskMessage) -> None:
    encoded = encode(message)
    headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
    body = decode_body(encoded.body, headers, properties, ACCEPT)
    assert body == (message.args, message.kwargs, {name: getattr(message, name) for name in NO_EMBED})
    for name in (
        "task",
        "id",
        "eta",
        "expires",
        "shadow",
        "group",
        "group_index",
        "retries",
        "parent_id",
        "ignore_result",
    ):
        assert headers[name] == getattr(message, name)
    assert headers["root_id"] == message.root_id or message.id
    assert tuple(headers["timelimit"]) == message.timelimit
    assert all(headers[name] == value for name, value in message.headers.items())
    assert properties.get("reply_to") == message.reply_to


def test_plain_call_is_a_celery_message() -> None:
    encoded = encode(TaskMessage("proj.add", "i", (1, 2), ignore_result=False))
    assert json.loads(encoded.headers) == {
        "lang": "py", "task": "proj.add", "id": "i", "retries": 0, "timelimit": [None, None], "root_id": "i",
        "argsrepr": "(1, 2)", "kwargsrepr": "{}", "origin": origin(), "ignore_result": False,
    }  # fmt: skip
    assert parse_headers(encoded.headers) == {
        "lang": "py", "task": "proj.add", "id": "i", "shadow": None, "eta": None, "expires": None,
        "group": None,
        "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": "i", "parent_id": None,
        "argsrepr": "(1, 2)", "kwargsrepr": "{}", "origin": origin(), "ignore_result": False,
        "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
    }  # fmt: skip
    assert encoded.properties is None
    assert json.loads(encoded.body) == [[1, 2], {}, NO_EMBED]


def test_set_headers_are_sent_in_celery_order() -> None:
    message = TaskMessage(
        "proj.add", "i", eta="2030-01-01T00:00:00+00:00", expires="2030-01-02T00:00:00+00:00", shadow="s",
        group="g",
        group_index=0, parent_id="p", replaced_task_nesting=1, stamped_headers=["team"], stamps={"team": "a"},
    )  # fmt: skip
    sent = json.loads(encode(message).headers)
    assert list(sent) == [*HEADERS, "team"]
    assert (sent["group_index"], sent["replaced_task_nesting"], sent["team"]) == (0, 1, "a")


def test_properties_are_sent_if_they_differ_from_the_defaults() -> None:
    assert json.loads(encode(TaskMessage("t", "i", reply_to="q")).properties or "") == {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "correlation_id": "i",
        "reply_to": "q",
    }
    pickled = json.loads(encode(TaskMessage("t", "i", serializer="pickle")).properties or "")
    assert pickled["content_type"] == "application/x-python-serialize"
    assert pickled["content_encoding"] == "binary"


def test_stamps_and_compression_become_headers() -> None:
    message = TaskMessage("t", "i", stamped_headers=["team"], stamps={"team": "a"}, compression="gzip")
    encoded = encode(message)
    headers = json.loads(encoded.headers)
    assert (headers["team"], headers["stamped_headers"], headers["stamps"]) == ("a", ["team"], {"team": "a"})
    assert headers["compression"] == "application/x-gzip"
    assert json.loads(zlib.decompress(encoded.body)) == [[], {}, NO_EMBED]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"args": (1, object())}, EncodeError, r"args\[1\] cannot be serialised"),
        ({"kwargs": {"user": object()}}, EncodeError, r"kwargs\['user'\]"),
        ({"callbacks": [object()]}, EncodeError, r"callbacks\[0\]"),
        ({"headers": {"x": object()}}, EncodeError, r"headers\['x'\]"),
        ({"headers": {"id": "other"}}, PublishError, "cannot hold 'id'"),
        ({"stamped_headers": ["task"], "stamps": {"task": 1}}, PublishError, "cannot hold 'task'"),
        ({"id": ""}, PublishError, "header 'id'"),
        ({"id": "a\nb"}, PublishError, "header 'id'"),
        ({"id": "x" * 300}, PublishError, "header 'id'"),
        ({"task": "\ud800"}, PublishError, "header 'task'"),
        ({"eta": "soon"}, PublishError, "header 'eta'"),
        ({"timelimit": (-1, None)}, PublishError, "header 'timelimit'"),
        ({"serializer": "jsn"}, ConfigurationError, "did you mean 'json'"),
        ({"compression": "rar"}, ConfigurationError, "there is no compression"),
    ],
)
def test_messages_that_receivers_would_reject_are_not_encoded(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        encode(replace(TaskMessage("proj.add", "i"), **changes))


def test_overlong_headers_are_rejected() -> None:
    with pytest.raises(PublishError, match="pass large values as arguments"):
        encode(TaskMessage("proj.add", "i", headers={"x": "y" * MAX_HEADERS}))


def test_body_over_the_size_limit_before_compression_is_rejected() -> None:
    message = TaskMessage("proj.add", "i", ("x" * 5000,), compression="gzip")
    assert len(encode(message, limit=6000).body) < 1000
    for send in (
        lambda: encode(message, limit=5000),
        lambda: HeaderTemplate(message, 5000).encode("i", message.args, {}),
    ):
        with pytest.raises(PublishError, match="before compression, over the limit of 5,000"):
            send()


# -- the template --


@given(MESSAGES, NAME, ARGS, KWARGS, st.none() | NAME, st.none() | NAME)
def test_template_encodes_like_encode(
    prototype: TaskMessage,
    id: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    root_id: str | None,
    parent_id: str | None,
) -> None:
    prototype = replace(prototype, argsrepr=None, kwargsrepr=None)
    message = replace(
        prototype,
        id=id,
        args=args,
        kwargs=kwargs,
        root_id=root_id,
        parent_id=parent_id,
    )
    template = HeaderTemplate(prototype)
    assert template.encode(id, args, kwargs, root_id, parent_id) == encode(message)


def test_template_keeps_nothing_from_the_previous_call() -> None:
    template = HeaderTemplate(TaskMessage("proj.add", "x"))
    first = template.encode("a", (1,), {})
    template.encode("b", (2,), {"k": 3}, parent_id="a", more=',"group":"g"')
    assert template.encode("a", (1,), {}) == first


@pytest.mark.parametrize("id", ["", "a\nb", "x" * 256, None, 7, 'quote"and\\backslash'])
def test_template_validates_the_id(id: Any) -> None:
    template = HeaderTemplate(TaskMessage("proj.add", "x"))
    if id and isinstance(id, str) and id.startswith("quote"):
        assert parse_headers(template.encode(id, (), {}).headers)["id"] == id
        return
    with pytest.raises(PublishError, match="task_id must be"):
        template.encode(id, (), {})


def test_template_names_the_unserializable_argument() -> None:
    template = HeaderTemplate(TaskMessage("proj.add", "x"))
    with pytest.raises(EncodeError, match=r"args\[0\]\['a'\]"):
        template.encode("i", ({"a": object()},), {})
    with pytest.raises(EncodeError, match=r"kwargs\['b'\]"):
        template.encode("i", (), {"b": {1}})
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    with pytest.raises(EncodeError, match="deeper"):
        template.encode("i", (deep,), {})


@pytest.mark.parametrize(
    "changes", [{"task": "a\nb"}, {"shadow": "a\nb"}, {"headers": {"id": "x"}}, {"timelimit": ("1", None)}]
)
def test_template_of_an_invalid_prototype_is_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(PublishError):
        HeaderTemplate(replace(TaskMessage("proj.add", "x"), **changes))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing to fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forked_child_has_its_own_origin() -> None:
    template = HeaderTemplate(TaskMessage("proj.add", "x"))
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, template.encode("i", (), {}).headers.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        assert json.loads(pipe.read())["origin"].startswith(f"gen{pid}@")
    assert origin().startswith(f"gen{os.getpid()}@")


# -- retries --


@given(MESSAGES, st.integers(1, 99), st.none() | st.floats(0, 2e9))
def test_retry_headers_keep_the_call(message: TaskMessage, retries: int, eta: float | None) -> None:
    encoded = encode(message)
    headers = parse_headers(encoded.headers)
    before = json.dumps(headers, default=str)
    again = retry_headers(headers, eta, retries, headers["id"])
    assert json.dumps(headers, default=str) == before
    changed = {"eta", "retries", "parent_id"}
    parent = headers["parent_id"] or headers["id"]
    assert {k: v for k, v in again.items() if k not in changed} == {
        k: v for k, v in headers.items() if k not in changed
    }
    assert (again["retries"], again["parent_id"]) == (retries, parent)
    sent = encode_parts(again, parse_properties(encoded.properties), encoded.body)
    parsed = parse_headers(sent.headers)
    assert decode_body(sent.body, parsed, parse_properties(sent.properties), ACCEPT).args == message.args
    assert (parsed["eta"] is None) is (eta is None)


def test_retry_headers_drop_headers_added_by_the_broker() -> None:
    headers = {**parse_headers(encode(TaskMessage("t", "i")).headers), "x-death": [1], "redelivered": True,
               "x-delivery-count": 3, "signature": "v1", "x-mine": 1,
               "compression": "application/x-gzip"}  # fmt: skip
    again = retry_headers(headers, "2030-01-01T00:00:00+00:00", 2, None)
    assert not again.keys() & {"x-death", "redelivered", "x-delivery-count", "signature"}
    assert (again["x-mine"], again["compression"], again["eta"]) == (
        1,
        "application/x-gzip",
        "2030-01-01T00:00:00+00:00",
    )
