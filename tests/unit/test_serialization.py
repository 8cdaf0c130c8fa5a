"""Serialization: kombu's JSON dialect, limits, and error messages."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import pickle
import uuid
import zlib
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import kombu.serialization
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads
from kombu.utils.json import register_type

from qworker import Signature, group
from qworker.errors import ConfigurationError, EncodeError, InvalidTaskMessage, SecurityError
from qworker.message import serialization
from qworker.message.kombu_json import MAX_DEPTH, dumps, loads, too_deep
from qworker.message.serialization import compress, content_types, decode, decompress, encode

JSON_ONLY = frozenset({"json"})
GZIP = "application/x-gzip"

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=[]))  # lone surrogates too
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.dates()
    | st.times()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


# -- the dialect --


@given(VALUES)
def test_json_round_trips(value: Any) -> None:
    assert decode(*_swap(encode(value)), JSON_ONLY) == value


@given(VALUES)
def test_json_is_compatible_with_kombu(value: Any) -> None:
    content_type, content_encoding, data = encode(value)
    assert kombu.serialization.loads(data, content_type, content_encoding) == value
    content_type, content_encoding, payload = kombu.serialization.dumps(value, "json")
    assert decode(payload.encode(), content_type, content_encoding, JSON_ONLY) == value


@given(VALUES)
def test_json_equals_that_of_kombu_without_spaces(value: Any) -> None:
    assert json.loads(dumps(value)) == json.loads(kombu_dumps(value))
    assert kombu_loads(dumps(value)) == value


def _swap(encoded: tuple[str, str, bytes]) -> tuple[bytes, str, str]:
    return encoded[2], encoded[0], encoded[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), "[1,2]"),
        ({"a": None}, '{"a":null}'),
        ("é\ud800", '"\\u00e9\\ud800"'),
        (b"a", '{"__type__":"bytes","__value__":"a"}'),
        (b"\xff", '{"__type__":"base64","__value__":"/w=="}'),
        (date(2030, 1, 2), '{"__type__":"date","__value__":"2030-01-02"}'),
        (time(1, 2), '{"__type__":"time","__value__":"01:02:00"}'),
        (datetime(2030, 1, 2), '{"__type__":"datetime","__value__":"2030-01-02T00:00:00"}'),
        (Decimal("1.50"), '{"__type__":"decimal","__value__":"1.50"}'),
        (uuid.UUID(int=1), '{"__type__":"uuid","__value__":{"hex":"00000000000000000000000000000001"}}'),
    ],
)
def test_json_text_of_each_type(value: object, text: str) -> None:
    assert dumps(value) == text


def test_custom_and_registered_types() -> None:
    class Point:
        def __json__(self) -> dict[str, int]:
            return {"x": 1}

    class Money:
        def __init__(self, amount: str) -> None:
            self.amount = amount

    assert loads(dumps([Point()])) == [{"x": 1}]
    register_type(Money, "test_money", lambda money: money.amount, Money)
    assert loads(dumps([Money("3.50")]))[0].amount == "3.50"


def test_infinity_and_nan_are_written_as_in_python() -> None:
    assert dumps([math.inf, -math.inf]) == "[Infinity,-Infinity]"
    assert math.isnan(loads("[NaN]")[0])


@pytest.mark.parametrize("text", [" [1]", "[1] ", "\n[1]\n"])
def test_surrounding_whitespace_is_ignored(text: str) -> None:
    assert loads(text) == [1]


# -- depth --


@pytest.mark.parametrize(
    ("depth", "refused"), [(MAX_DEPTH - 1, False), (MAX_DEPTH, False), (MAX_DEPTH + 1, True)]
)
def test_depth_is_limited_when_encoding_and_decoding(depth: int, refused: bool) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value] if len(str(depth)) % 2 else {"k": value}
    data = nested(depth).encode()
    if not refused:
        assert decode(*_swap(encode(value)), JSON_ONLY) == value
        decode(data, serialization.JSON, "utf-8", JSON_ONLY)
        return
    with pytest.raises(EncodeError, match="deeper than 200"):
        encode(value)
    with pytest.raises(InvalidTaskMessage, match="deeper than 200"):
        decode(data, serialization.JSON, "utf-8", JSON_ONLY)


@pytest.mark.parametrize(
    ("text", "deep"),
    [
        ("[" + "[]," * 10_000 + "[]]", False),
        ('"' + "[" * 1000 + '"', False),
        ('["' + "[" * 1000 + '\\"' + "{" * 1000 + '"]', False),
        ('["]"' + ',["]"' * 300 + "]" * 301, True),
        ('["\\"]"' + ',["]"' * 300 + "]" * 301, True),
        ('{"a":' * 201 + "1" + "}" * 201, True),
        ("[" * 100_000, True),
        ("]" * 100_000, False),
        ("[]" * 201 + "]", True),
    ],
)
def test_depth_is_counted_outside_strings(text: str, deep: bool) -> None:
    assert too_deep(text.encode()) is deep


@given(VALUES)
def test_depth_is_exact(value: Any) -> None:
    def depth(part: Any) -> int:
        if isinstance(part, list):
            return 1 + max(map(depth, part), default=0)
        if isinstance(part, dict):
            return 1 + max(map(depth, part.values()), default=0)
        return 0

    data = dumps(value).encode()
    actual = depth(json.loads(data))
    assert not too_deep(data, actual)
    assert actual == 0 or too_deep(data, actual - 1)


# -- unserializable values --


class Connection:
    pass


class Broken:
    def __json__(self) -> None:
        raise ValueError("closed")


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "path", "words"),
    [
        ([1, {"user": Connection()}], "args[1]['user']", "Connection is not JSON"),
        (Connection(), "args", "its id"),
        ({"a": {1, 2}}, "args['a']", "set is not JSON"),
        ({(1, 2): 3}, "a key of args", "tuple cannot be the key"),
        ([Broken()], "args[0]", "ValueError: closed"),
        ([10**5000], "args[0]", "4300"),
        (LOOP, None, "contains itself"),
        ({"k" * 500: Connection()}, None, "Connection"),
    ],
)
def test_encode_error_names_path_and_reason(value: Any, path: str | None, words: str) -> None:
    with pytest.raises(EncodeError, match=words) as caught:
        encode(value, what="args")
    if path is not None:
        assert caught.value.path == path
        assert path in str(caught.value)
    assert len(str(caught.value)) < 600


def test_encode_errors_of_other_serializers() -> None:
    with pytest.raises(EncodeError, match="args cannot be serialised with pickle"):
        encode([lambda: None], "pickle", "args")
    with pytest.raises(ConfigurationError, match="did you mean 'json'") as caught:
        encode([1], "jsn")
    assert caught.value.setting == "task_serializer"


def test_missing_package_of_a_serializer_is_named() -> None:
    kombu.serialization.register("test_readonly", None, bytes, "application/x-test-readonly", "binary")
    try:
        with pytest.raises(ConfigurationError, match="'test_readonly' is not installed: install the package"):
            encode([1], "test_readonly")
    finally:
        kombu.serialization.unregister("test_readonly")


@pytest.mark.parametrize("serializer", ["json", "pickle", "yaml", "msgpack"])
def test_serializers_round_trip_and_match_kombu(serializer: str) -> None:
    value = {"a": [1, "é", None, True], "b": {"c": 1.5}}
    content_type, content_encoding, data = encode(value, serializer)
    assert type(data) is bytes
    assert decode(data, content_type, content_encoding, content_types([serializer])) == value
    assert kombu.serialization.loads(data, content_type, content_encoding, accept={content_type}) == value


# -- accepted content --


class Trap:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def test_data_of_unaccepted_content_type_is_not_decoded() -> None:
    with pytest.raises(SecurityError, match=r"'application/x-python-serialize'.*'pickle'.*accept_content"):
        decode(pickle.dumps(Trap()), "application/x-python-serialize", "binary", JSON_ONLY)


@pytest.mark.parametrize("content_type", ["application/data", "application/text", "text/plain", "", "json"])
def test_only_listed_content_types_are_accepted(content_type: str) -> None:
    accept = frozenset({"application/json"})
    with pytest.raises(SecurityError):
        decode(b"[]", content_type, "utf-8", accept)


def test_accept_lists_names_or_content_types() -> None:
    assert content_types(["json", "application/x-yaml"]) == {"application/json", "application/x-yaml"}
    for accept in (JSON_ONLY, content_types(["json"])):
        assert decode(b"[1]", "application/json", "utf-8", accept) == [1]
    with pytest.raises(ConfigurationError, match="did you mean 'pickle'") as caught:
        content_types(["pikle"])
    assert caught.value.setting == "accept_content"


@pytest.mark.parametrize(
    ("data", "encoding", "reason"),
    [
        (b"", "utf-8", "not valid JSON"),
        (b"[1,]", "utf-8", "not valid JSON"),
        (b"[1] x", "utf-8", "not valid JSON"),
        (b"\xff\xfe", "utf-8", "UnicodeDecodeError"),
        (b"[1]", "rot13", "content encoding 'rot13'"),
        (b"[1]", "idna", "content encoding"),
        (b"[1]", "zlib", "content encoding"),
        (b"[" * 100_000, "utf-8", "deeper"),
        (b"9" * 5000, "utf-8", "4300"),
        (b'{"__type__":"nonsense","__value__":1}', "utf-8", "Unsupported type"),
        (b'{"__type__":["list"],"__value__":1}', "utf-8", "not valid JSON"),
        (b'{"__type__":"uuid","__value__":{"hex":7}}', "utf-8", "not valid JSON"),
        (b'{"__type__":"datetime","__value__":"soon"}', "utf-8", "not valid JSON"),
        (b'{"__type__":"base64","__value__":null}', "utf-8", "not valid JSON"),
    ],
)
def test_malformed_json_is_rejected_with_a_reason(data: bytes, encoding: str, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason) as caught:
        decode(data, "application/json", encoding, JSON_ONLY)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("encoding", "codec"),
    [("utf-8", "utf-8"), ("UTF-8", "utf-8"), ("binary", "utf-8"), ("us-ascii", "ascii"), ("latin-1",
    "latin-1"),
     ("utf-16", "utf-16")],
)  # fmt: skip
def test_common_content_encodings(encoding: str, codec: str) -> None:
    text = '["e"]' if codec == "ascii" else '["é"]'
    assert decode(text.encode(codec), "application/json", encoding, JSON_ONLY) == json.loads(text)


@pytest.mark.parametrize(("size", "refused"), [(99, False), (100, False), (101, True)])
def test_size_is_limited(size: int, refused: bool) -> None:
    data = b'"' + b"x" * (size - 2) + b'"'
    if refused:
        with pytest.raises(InvalidTaskMessage, match="101 bytes is over the limit of 100"):
            decode(data, "application/json", "utf-8", JSON_ONLY, limit=100)
    else:
        assert decode(data, "application/json", "utf-8", JSON_ONLY, limit=100)


def test_size_is_unlimited_without_a_limit() -> None:
    data = encode("x" * (serialization.MAX_BYTES + 1))[2]
    assert len(decode(data, "application/json", "utf-8", JSON_ONLY)) == serialization.MAX_BYTES + 1


def test_msgpack_writes_calls_within_subclasses() -> None:
    """The message was damaged: the fields of a group were counted wrongly."""
    several = group(Signature("a"), Signature("b"))
    Pair = namedtuple("Pair", "one other")
    plain = json.loads(dumps(several))
    for value, expected in (
        (OrderedDict(calls=several), {"calls": plain}),
        (defaultdict(list, calls=[several]), {"calls": [plain]}),
        (Pair(several, 1), [plain, 1]),
    ):
        kind, encoding, data = encode(value, "msgpack")
        assert decode(data, kind, encoding, frozenset({kind})) == expected


@pytest.mark.parametrize("key", [1, 2.5, None, True, (1, 2)], ids=str)
def test_keys_that_msgpack_cannot_read_are_refused(key: Any) -> None:
    """The call was accepted, and became a dead letter."""
    with pytest.raises(
        EncodeError, match=r"args cannot be serialised with msgpack: .*the key .* is not text"
    ):
        encode([{"a": [{key: 2}]}], "msgpack", "args")


@pytest.mark.parametrize("name", ["pickle", "yaml", "msgpack"])
def test_damaged_data_of_other_serializers_is_rejected(name: str) -> None:
    content_type = serialization.CONTENT_TYPES[name]
    with pytest.raises(InvalidTaskMessage, match="not valid application/x-"):
        decode(b"\xc1\xff[{: !!python/object:os.system x", content_type, "binary", frozenset({name}))


# -- compression --


@given(st.binary(max_size=2000), st.sampled_from(["gzip", "bzip2", "lzma", "zstd"]))
def test_compression_round_trips_and_matches_kombu(data: bytes, method: str) -> None:
    mime, packed = compress(data, method)
    assert decompress(packed, mime) == data
    assert kombu.compression.decompress(packed, mime) == data


def test_gzip_and_zlib_formats_are_decompressed() -> None:
    assert decompress(gzip.compress(b"[1]"), GZIP) == b"[1]"
    assert decompress(zlib.compress(b"[1]"), GZIP) == b"[1]"


@pytest.mark.parametrize(
    "compressed",
    [
        lambda data: (GZIP, zlib.compress(data, 9)),
        lambda data: ("application/x-bz2", bz2.compress(data)),
        lambda data: ("application/x-lzma", lzma.compress(data, preset=0)),
        lambda data: compress(data, "zstd"),
    ],
    ids=["gzip", "bz2", "lzma", "zstd"],
)
def test_decompression_bomb_stops_at_the_limit(compressed: Callable[[bytes], tuple[str, bytes]]) -> None:
    mime, bomb = compressed(b"\0" * 50_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(InvalidTaskMessage, match="more than the limit of 1000000 bytes"):
        decompress(bomb, mime, 1_000_000)


@pytest.mark.parametrize(
    ("data", "mime", "reason"),
    [
        (b"not compressed", GZIP, "does not decompress"),
        (zlib.compress(b"x" * 1000)[:-3], GZIP, "ends in the middle"),
        (b"", GZIP, "ends in the middle"),
        (b"x", "application/x-bz2", "does not decompress|ends in the middle"),
        (b"x", "application/x-lzma", "does not decompress|ends in the middle"),
        (b"x", "application/zip", "is not one of"),
        (b"x", "a" * 5000, "is not one of"),
    ],
)
def test_damaged_or_unknown_compression_is_rejected(data: bytes, mime: str, reason: str) -> None:
    with pytest.raises(InvalidTaskMessage, match=reason) as caught:
        decompress(data, mime)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("size", "refused"), [(999, False), (1000, False), (1001, True)])
def test_decompression_limit_is_exact(size: int, refused: bool) -> None:
    packed = zlib.compress(b"x" * size)
    if refused:
        with pytest.raises(InvalidTaskMessage):
            decompress(packed, GZIP, 1000)
    else:
        assert len(decompress(packed, GZIP, 1000)) == size


def test_unknown_compression_method_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"there is no compression 'rar'.*gzip") as caught:
        compress(b"x", "rar")
    assert caught.value.setting == "task_compression"


class _CustomJson:
    """The return value of its method is checked, too."""

    def __json__(self) -> Any:
        return {"__type__": "invoice", "__value__": 3}

    def __reduce__(self) -> Any:
        return str, ()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"__type__": "invoice", "__value__": 3}, "args"),
        ([{"a": ({"__value__": 1, "__type__": date.today()},)}], "args[0]['a'][0]"),
        ({"a": datetime.now(), "b": {"__type__": "uuid", "__value__": {"hex": "0" * 32}}}, "args['b']"),
        ([_CustomJson()], "args[0]"),
    ],
)
def test_dict_that_looks_like_a_type_tag_is_rejected(value: Any, path: str) -> None:
    """Celery writes it, and readers fail or get a value of another type."""
    with pytest.raises(EncodeError, match="is not read back as a dictionary") as failure:
        serialization.encode_json(value, {"args": value})
    assert str(failure.value).startswith(f"{path} cannot be serialised")
    assert encode(value, "pickle")


@pytest.mark.parametrize(
    "value",
    [
        {"__type__": 1},
        {"__type__": 1, "__value__": 2, "more": 3},
        '{"__type__": 1}',
        ['"__type__":'],
        {"x": [datetime(2030, 1, 1), uuid.UUID(int=1), b"\xff", {"__type__": 1}]},
    ],
)
def test_dict_that_only_resembles_a_type_tag_is_encoded(value: Any) -> None:
    assert loads(dumps(value)) == value
