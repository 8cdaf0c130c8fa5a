"""Fuzzing of the decoders: any input gives a message, or one of two errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qworker.errors import InvalidTaskMessage, SecurityError
from qworker.message.protocol import (
    TaskMessage,
    decode_body,
    encode,
    from_kombu,
    from_v1,
    parse_headers,
    parse_properties,
    receive,
    to_kombu,
)
from qworker.message.reading import HEADERS
from qworker.message.signing import Signer

ACCEPT = frozenset({"json", "yaml", "msgpack"})
LIMIT = 10_000
SIGNER = Signer(["a key that is long enough for tests"])
GOOD = encode(
    TaskMessage(
        "proj.add", "id", (1, b"\xff", {"a": [None]}), {"x": "é"}, callbacks=[{"task": "proj.next"}],
        eta="2030-01-01T00:00:00+00:00", timelimit=(10, 5), stamps={"a": 1}, reply_to="q",
    ),
    SIGNER,
)  # fmt: skip
V1 = (
    b'{"task":"t","id":"i","args":[1],"kwargs":{},"eta":"2030-01-01T00:00:00",'
    b'"utc":false,"timelimit":[1,2],"retries":0}'
)

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=60)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["__type__", "__value__", "task", "args", "hex"]) | ANY_TEXT, inner, max_size=4
        )
    ),
    max_leaves=12,
)
CONTENT_TYPES = st.sampled_from(
    [
        "application/json",
        "application/x-yaml",
        "application/x-msgpack",
        "application/x-python-serialize",
        "application/data",
        "x",
    ]
)
COMPRESSIONS = st.sampled_from(
    [None, "application/x-gzip", "application/x-bz2", "application/x-lzma", "zip", 7]
)


@st.composite
def mutated(draw: st.DrawFn, seed: bytes) -> bytes:
    """`seed` with a few bytes changed, inserted, removed or repeated."""
    data = bytearray(seed)
    for _ in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        end = draw(st.integers(start, min(start + 12, len(data))))
        data[start:end] = draw(
            st.binary(max_size=6)
            | st.sampled_from(
                [b"[", b"]", b"{", b"}", b'"', b"\\ud800", b"NaN", b"null", b"9" * 400, b"\x00", b"[[[["]
            )
            | st.just(bytes(data[start:end]) * 3)
        )
    return bytes(data)


def decode_or_refuse(call: Any, *arguments: Any, **named: Any) -> Any:
    """Return the result of a decoder, or None if it refused with a bounded reason."""
    refusal = None
    try:
        return call(*arguments, **named)
    except (InvalidTaskMessage, SecurityError) as error:
        refusal = str(error)
    assert 0 < len(refusal) < 600
    return None


def check_read(headers: Any, properties: Any, body: Any) -> None:
    """Read a message with every decoder, and check the results."""
    parsed = decode_or_refuse(parse_headers, headers)
    given_properties = decode_or_refuse(parse_properties, properties)
    if parsed is not None:
        assert HEADERS.keys() <= parsed.keys()
        json.dumps(parsed["task"]).encode()
    if given_properties is not None:
        for signer in (None, SIGNER):
            decoded = decode_or_refuse(
                decode_body, body, parsed or {}, given_properties, ACCEPT, signer, limit=LIMIT
            )
            assert decoded is None or (type(decoded.args) is tuple and type(decoded.kwargs) is dict)
        decode_or_refuse(from_v1, given_properties, body, ACCEPT, limit=LIMIT)
    decode_or_refuse(receive, headers, properties, body, ACCEPT)


@given(
    st.binary(max_size=200) | mutated(GOOD.headers.encode()),
    st.none() | st.binary(max_size=100),
    st.binary(max_size=200),
)
@example(b"", b"", b"")
def test_arbitrary_bytes(headers: bytes, properties: bytes | None, body: bytes) -> None:
    check_read(headers, properties, body)
    text = headers.decode("utf-8", "surrogateescape")
    check_read(text, properties and properties.decode("latin-1"), body)


@given(mutated(GOOD.headers.encode()), mutated((GOOD.properties or "").encode()), mutated(GOOD.body))
def test_mutations_of_a_valid_message(headers: bytes, properties: bytes, body: bytes) -> None:
    check_read(headers, properties, body)


@given(mutated(V1), CONTENT_TYPES, st.sampled_from(["utf-8", "binary", "idna", "utf-16", "x"]))
def test_mutations_of_protocol_1(body: bytes, content_type: str, encoding: str) -> None:
    decode_or_refuse(
        from_v1, {"content_type": content_type, "content_encoding": encoding}, body, ACCEPT, limit=LIMIT
    )


@given(st.sampled_from(list(HEADERS)), ANY_JSON)
def test_arbitrary_value_in_any_header(name: str, value: Any) -> None:
    check_read(json.dumps({**json.loads(GOOD.headers), name: value}), None, GOOD.body)


@given(ANY_JSON, ANY_JSON, ANY_JSON)
def test_arbitrary_json_as_headers_properties_and_body(headers: Any, properties: Any, body: Any) -> None:
    check_read(json.dumps(headers), json.dumps(properties), json.dumps(body).encode())
    check_read(headers, properties, body)


@given(st.lists(ANY_JSON, min_size=3, max_size=3), ANY_JSON)
def test_arbitrary_json_in_the_body(body: list[Any], signature: Any) -> None:
    check_read(GOOD.headers, None, json.dumps(body).encode())
    embed = {"callbacks": [signature], "errbacks": signature, "chain": [signature], "chord": signature}
    check_read(GOOD.headers, None, json.dumps([[], {}, embed]).encode())


@given(st.binary(max_size=300), CONTENT_TYPES, COMPRESSIONS)
def test_arbitrary_body_with_any_type_and_compression(
    body: bytes, content_type: str, compression: Any
) -> None:
    headers = {**parse_headers(GOOD.headers), "compression": compression}
    decode_or_refuse(decode_body, body, headers, {"content_type": content_type}, ACCEPT, limit=LIMIT)


@given(ANY_JSON, ANY_JSON, ANY_JSON, ANY_JSON)
def test_arbitrary_envelope(headers: Any, properties: Any, body: Any, whole: Any) -> None:
    decode_or_refuse(from_kombu, whole)
    encoded = decode_or_refuse(
        from_kombu, {"headers": headers, "properties": properties, "body": body, "content-type": whole}
    )
    if encoded is not None:
        check_read(*encoded)
        decode_or_refuse(to_kombu, encoded)


@given(
    st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"1", b'"a"']), max_size=40)
)
def test_fragments_of_json(fragments: list[bytes]) -> None:
    data = b"".join(fragments)
    check_read(data, data, data)


@pytest.mark.parametrize("depth", [900, 5_000, 200_000])
@pytest.mark.parametrize("opener", ["[", '{"a":', '[{"a":[', '["]",'])
def test_deep_nesting(depth: int, opener: str) -> None:
    text = opener * depth
    check_read(text, text, text.encode())
    check_read('{"task":"t","id":"i","x":' + text, None, b"[[" + text.encode())
