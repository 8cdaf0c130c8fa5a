"""Parsing messages: malformed ones are rejected with a reason; valid ones pass unchanged."""

from __future__ import annotations

import json
import math
import pickle
import zlib
from typing import Any

import pytest

from qworker.errors import InvalidTaskMessage, SecurityError
from qworker.message.reading import (
    HEADERS,
    MAX_HEADERS,
    MAX_ID,
    NO_EMBED,
    check_headers,
    decode_body,
    parse_headers,
    parse_properties,
)

ACCEPT = frozenset({"json"})
GOOD: dict[str, Any] = {
    "lang": "py", "task": "proj.add", "id": "i", "shadow": None, "eta": "2030-01-01T00:00:00+00:00",
    "expires": None, "group": "g", "group_index": 3, "retries": 1, "timelimit": [10, 5.5], "root_id": "r",
    "parent_id": "p", "argsrepr": "(1,)", "kwargsrepr": "{}", "origin": "gen1@host", "ignore_result": True,
    "replaced_task_nesting": 0, "stamped_headers": ["team"], "stamps": {"team": "a"}, "team": "a",
    "mine": {"any": 1},
}  # fmt: skip
BODY = b'[[1],{"x":2},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'


def headers_with(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


# -- headers --


def test_valid_headers_pass_unchanged() -> None:
    assert parse_headers(json.dumps(GOOD)) == GOOD


def test_missing_headers_get_defaults() -> None:
    parsed = parse_headers('{"task":"t","id":"i","x":1}')
    assert list(HEADERS) == [name for name in parsed if name != "x"] or HEADERS.keys() <= parsed.keys()
    assert len(HEADERS) == 19
    assert parsed["retries"] == 0
    assert parsed["timelimit"] == [None, None]
    assert (parsed["stamps"], parsed["ignore_result"], parsed["eta"], parsed["x"]) == ({}, None, None, 1)


def test_null_headers_get_defaults() -> None:
    parsed = parse_headers(headers_with(retries=None, timelimit=None, stamps=None, lang=None))
    assert (parsed["retries"], parsed["timelimit"], parsed["stamps"]) == (0, [None, None], {})


def test_defaults_are_not_shared_between_messages() -> None:
    first, second = parse_headers('{"task":"t","id":"i"}'), parse_headers('{"task":"t","id":"i"}')
    first["stamps"]["a"] = first["timelimit"][0] = 1
    assert (second["stamps"], second["timelimit"]) == ({}, [None, None])


@pytest.mark.parametrize(
    "text",
    ["", "x", "{", "null", "[]", "7", '"text"', "[" * 100_000, '{"task":', '{"a":' * 5000, "NaN", "\x00",
    "\ud800",
     '{"task":"t","id":"i"} trailing', '{"task":"t","id":"i","x":{"__type__":"nonsense","__value__":1}}',
     '{"task":"t","id":"i","retries":' + "9" * 5000 + "}", " " * (MAX_HEADERS + 1),
     None, 7, [], {}, b"\xff", b"x", memoryview(b"[]")],
)  # fmt: skip
def test_headers_that_are_not_an_object_are_rejected(text: Any) -> None:
    with pytest.raises(InvalidTaskMessage) as caught:
        parse_headers(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("missing", ["task", "id"])
def test_task_and_id_are_required(missing: str) -> None:
    for text in (
        json.dumps({**GOOD, missing: None}),
        json.dumps({k: v for k, v in GOOD.items() if k != missing}),
    ):
        with pytest.raises(InvalidTaskMessage, match=f"'{missing}' is missing"):
            parse_headers(text)


WRONG: dict[str, list[Any]] = {
    "task": ["", 7, True, [], {}, "a\nb", "a\x00", "\ud800", "\u202ex", "x" * (MAX_ID + 1)],
    "id": ["", 7, [], {"a": 1}, "a\r\nb", "\x1b[31m", "\udfff", "x" * (MAX_ID + 1)],
    "eta": [7, 1.5, math.nan, True, "soon", "", [], "NaN", "2030-13-01", "x" * 1000, "0000-00-00T00:00:00"],
    "expires": [7, math.inf, {}, "tomorrow", "\ud800"],
    "retries": ["1", 1.0, True, -1, 2**31, 10**300, [], math.nan],
    "timelimit": [7, "x", [], [1], [1, 2, 3], ["1", None], [None, True], [-1, None], [math.nan, None],
    [math.inf, 1], {}, [10**300, 1]],
    "group": [7, [], "a\nb", "x" * 2000],
    "group_index": ["1", 1.5, True, -1],
    "root_id": [7, {}, "\x00"],
    "parent_id": [[], True, "\ud800"],
    "shadow": [7, "a\nb"],
    "origin": [7, "a\tb"],
    "lang": [7, []],
    "argsrepr": [7, [], {}],
    "kwargsrepr": [True, {}],
    "ignore_result": ["yes", 1, 0, []],
    "replaced_task_nesting": ["0", -1, 0.5, True],
    "stamped_headers": ["x", {}, [1], [["x"]]],
    "stamps": ["x", [], 7, True],
}  # fmt: skip


def test_invalid_values_are_listed_for_every_header() -> None:
    assert WRONG.keys() == HEADERS.keys()


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_message_names_the_invalid_header(name: str, value: Any) -> None:
    with pytest.raises(InvalidTaskMessage, match=f"header '{name}' is ") as caught:
        parse_headers(headers_with(**{name: value}))
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(("length", "refused"), [(MAX_ID - 1, False), (MAX_ID, False), (MAX_ID + 1, True)])
def test_id_length_is_limited(length: int, refused: bool) -> None:
    text = headers_with(id="x" * length)
    if refused:
        with pytest.raises(InvalidTaskMessage):
            parse_headers(text)
    else:
        assert parse_headers(text)["id"] == "x" * length


@pytest.mark.parametrize(
    ("length", "refused"), [(MAX_HEADERS - 1, False), (MAX_HEADERS, False), (MAX_HEADERS + 1, True)]
)
def test_headers_length_is_limited(length: int, refused: bool) -> None:
    bare = headers_with(pad="")
    text = headers_with(pad="x" * (length - len(bare)))
    assert len(text) == length
    if refused:
        with pytest.raises(InvalidTaskMessage, match="over the limit"):
            parse_headers(text)
    else:
        assert parse_headers(text)["pad"]


def test_argument_reprs_are_sanitized() -> None:
    parsed = parse_headers(headers_with(argsrepr="a\nb\x1b[31m\u202e", kwargsrepr="x" * 100_000))
    assert parsed["argsrepr"] == "a\\nb\\x1b[31m\\u202e"
    assert len(parsed["kwargsrepr"]) == 4096


def test_headers_as_bytes_are_parsed() -> None:
    assert parse_headers(json.dumps(GOOD).encode()) == GOOD  # type: ignore[arg-type]
    assert check_headers(dict(GOOD)) == GOOD


# -- properties --


def test_missing_properties_get_defaults() -> None:
    assert parse_properties(None) == {"content_type": "application/json", "content_encoding": "utf-8"}
    assert parse_properties("{}") == parse_properties(None)
    assert parse_properties('{"content_type":null,"reply_to":"q"}')["content_type"] == "application/json"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "7", "{", 7, b"\xff", '{"content_type":7}', '{"content_encoding":[]}', '{"reply_to":{}}',
    '{"correlation_id":1}',
     '{"priority":"9"}', '{"priority":-1}', '{"priority":1e400}', '{"delivery_info":[]}',
     '{"content_type":"a\\nb"}',
     '{"reply_to":"\\ud800"}', '{"content_type":"' + "x" * 5000 + '"}'],
)  # fmt: skip
def test_malformed_properties_are_rejected(text: Any) -> None:
    with pytest.raises(InvalidTaskMessage, match="propert"):
        parse_properties(text)


# -- bodies --


def read(body: Any, headers: Any = None, accept: frozenset[str] = ACCEPT, **properties: Any) -> Any:
    return decode_body(
        body, headers or GOOD, {**parse_properties(None), **properties}, accept, limit=1_000_000
    )


def test_valid_body_is_decoded() -> None:
    body = read(BODY)
    assert body == ((1,), {"x": 2}, NO_EMBED)
    assert type(body.args) is tuple


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"[[1],{},null]", ((1,), {}, NO_EMBED)),
        (b"[null,null,null]", ((), {}, NO_EMBED)),
        (b"[[],{},{}]", ((), {}, NO_EMBED)),
        (b'{"args":[1],"kwargs":{"a":2}}', ((1,), {"a": 2}, NO_EMBED)),
        (bytearray(b"[[1],{},null]"), ((1,), {}, NO_EMBED)),
        (memoryview(b"[[1],{},null]"), ((1,), {}, NO_EMBED)),
        ("[[1],{},null]", ((1,), {}, NO_EMBED)),
    ],
)
def test_other_body_formats_are_decoded(body: Any, expected: Any) -> None:
    assert read(body) == expected


SIGNATURE = {
    "task": "proj.next",
    "args": [],
    "kwargs": {},
    "options": {},
    "subtask_type": None,
    "immutable": False,
}


def test_embedded_calls_are_decoded() -> None:
    embed = {
        "callbacks": [SIGNATURE],
        "errbacks": None,
        "chain": [SIGNATURE, SIGNATURE],
        "chord": SIGNATURE,
        "x": 1,
    }
    assert read(json.dumps([[], {}, embed]).encode()).embed == {k: v for k, v in embed.items() if k != "x"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not valid JSON"),
        (b"\x00", "not valid JSON"),
        (b"\x80\x04.", "UnicodeDecodeError"),
        (b"7", "not .args, kwargs, embed"),
        (b"null", "not .args, kwargs, embed"),
        (b"{}", "not .args, kwargs, embed"),
        (b"[]", "not .args, kwargs, embed"),
        (b"[[],{}]", "not .args, kwargs, embed"),
        (b"[[],{},{},{}]", "not .args, kwargs, embed"),
        (b"[7,{},{}]", "args are 7"),
        (b'["ab",{},{}]', "args are 'ab'"),
        (b"[{},{},{}]", "args are {}"),
        (b"[[],[],{}]", "kwargs are"),
        (b"[[],7,{}]", "kwargs are 7"),
        (b"[[],{},7]", "embed is 7"),
        (b"[[],{},[]]", "embed is"),
        (b'[[],{},{"callbacks":7}]', "embedded callbacks is 7"),
        (b'[[],{},{"callbacks":[7]}]', "embedded callbacks"),
        (b'[[],{},{"errbacks":{"task":"x"}}]', "embedded errbacks"),
        (b'[[],{},{"chain":[{"task":7}]}]', "embedded chain"),
        (b'[[],{},{"chain":[{"task":"a\\nb"}]}]', "embedded chain"),
        (b'[[],{},{"chord":[]}]', "embedded chord"),
        (b'[[],{},{"chord":"x"}]', "embedded chord"),
        (b"[" * 1000, "deeper"),
        (b'[[{"__type__":"nonsense","__value__":0}],{},{}]', "Unsupported type"),
        (b"[[" + b"9" * 5000 + b"],{},{}]", "4300"),
        (b"[" + b" " * 1_000_000 + b"]", "over the limit"),
        (None, "not bytes"),
        (7, "not bytes"),
        (["x"], "not bytes"),
    ],
)
def test_malformed_bodies_are_rejected(body: Any, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason) as caught:
        read(body)
    assert len(str(caught.value)) < 400


def test_compressed_body_is_decoded() -> None:
    headers = {**GOOD, "compression": "application/x-gzip"}
    assert read(zlib.compress(BODY), headers).args == (1,)


@pytest.mark.parametrize(
    ("compression", "body", "reason"),
    [
        ("application/x-gzip", BODY, "does not decompress"),
        ("application/x-gzip", zlib.compress(b" " * 2_000_000), "more than the limit"),
        ("application/x-gzip", b"\0" * 1_000_001, "over the limit"),
        ("rar", BODY, "is not one of"),
        ("", BODY, "is not one of"),
        (7, BODY, "'compression' is 7"),
        (["application/x-gzip"], BODY, "'compression' is"),
    ],
)
def test_malformed_compression_is_rejected(compression: Any, body: bytes, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason):
        read(body, {**GOOD, "compression": compression})


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def test_pickle_is_neither_loaded_nor_decompressed_unless_accepted() -> None:
    with pytest.raises(SecurityError, match="not accepted"):
        read(pickle.dumps(Trap()), content_type="application/x-python-serialize", content_encoding="binary")
    with pytest.raises(SecurityError, match="not accepted"):
        read(b"bomb", {**GOOD, "compression": "x"}, content_type="application/x-python-serialize")


def test_accepted_pickle_is_decoded() -> None:
    data = pickle.dumps(((1,), {"x": {2}}, {"callbacks": None}))
    body = read(
        data,
        accept=frozenset({"pickle"}),
        content_type="application/x-python-serialize",
        content_encoding="binary",
    )
    assert body == ((1,), {"x": {2}}, NO_EMBED)
    with pytest.raises(InvalidTaskMessage, match="kwargs are"):
        read(
            pickle.dumps(((), {7: 1}, None)),
            accept=frozenset({"pickle"}),
            content_type="application/x-python-serialize",
            content_encoding="binary",
        )
