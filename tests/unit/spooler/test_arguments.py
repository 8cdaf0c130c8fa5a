"""Arguments of jobs: which pickles are written and read, and which are rejected."""

from __future__ import annotations

import datetime
import pickle
import pickletools
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import SpoolError, UnrunnableJob
from qworker.message.plain_pickle import OPERATIONS
from qworker.spooler.arguments import read_arguments, write_arguments

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.datetimes(timezones=st.just(datetime.UTC))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(SCALARS, inner, max_size=4)
        | st.tuples(inner, inner)
        | st.frozensets(SCALARS, max_size=3)
        | st.sets(SCALARS, max_size=3)
    ),
    max_leaves=6,
)


def pairs(written: dict[bytes, bytes]) -> dict[str, bytes]:
    return {key.decode(): value for key, value in written.items()}


@given(st.lists(PLAIN, max_size=3).map(tuple), st.dictionaries(st.text(max_size=5), PLAIN, max_size=3))
def test_plain_data_round_trips(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    written = write_arguments(args, kwargs)
    assert read_arguments(pairs(written)) == (args, kwargs)
    assert pickle.loads(written[b"args"]) == args, "uWSGI can read it, too"


@given(st.lists(PLAIN, max_size=3).map(tuple), st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_arguments_written_by_uwsgi_are_read(args: tuple[Any, ...], protocol: int) -> None:
    if protocol < 3:  # these protocols write bytes as a call of a codec
        args = tuple(value for value in args if b"codecs" not in pickle.dumps(value, protocol))
        args = tuple(value for value in args if b"__builtin__" not in pickle.dumps(value, protocol))
        args = tuple(value for value in args if b"datetime" not in pickle.dumps(value, protocol))
    data = pickle.dumps(args, protocol)
    assert read_arguments({"args": data, "kwargs": pickle.dumps({}, protocol)}) == (args, {})


def test_missing_arguments_give_none() -> None:
    assert read_arguments({"a": b"b"}) is None


class Thing:
    """Not plain data."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing)

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    """Not plain data: it may have attributes."""


@pytest.mark.parametrize(
    "value",
    [
        Thing(),
        [Thing()],
        {"a": Thing()},
        Text("x"),
        Thing,
        print,
        uuid.UUID(int=1),
        bytearray(b"x"),
        range(3),
    ],
)
def test_other_objects_need_allow_pickle(value: Any) -> None:
    with pytest.raises(SpoolError, match="spooler_allow_pickle"):
        write_arguments((value,), {})
    with pytest.raises(SpoolError, match="spooler_allow_pickle"):
        write_arguments((), {"a": value})
    written = pairs(write_arguments((value,), {}, allow_pickle=True))
    assert read_arguments(written, allow_pickle=True) == ((value,), {})
    with pytest.raises(UnrunnableJob, match="could run any code"):
        read_arguments(written)


def test_unpicklable_arguments_raise_spool_error() -> None:
    with pytest.raises(SpoolError, match="cannot be pickled"):
        write_arguments((lambda: 0,), {}, allow_pickle=True)


def bomb(code: bytes) -> dict[str, bytes]:
    return {"args": code, "kwargs": pickle.dumps({})}


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'touch broken'\ntR.",
        b"cposix\nsystem\n(V echo\ntR.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02ls\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x0bset.__doc__\x93.",
        b"\x80\x04\x8c\x08datetime\x8c\x08sys.exit\x93)R.",
        b"(ios\nsystem\n.",
        b"(cos\nsystem\no.",
        b"\x82\x01.",
        b"P1\n.",
        b"\x80\x04cdatetime\ndate\n)\x81.",
        b"\x80\x04cdatetime\ndate\n}b.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.",
        b"r\xff\xff\xff\x7f.",
        b"Nr\xff\xff\xff\x7f.",
        b"Np2000000000\n.",
        b"Np-1\n.",
        b"\x8b\xff\xff\xff\x7f.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"I" + b"9" * 10_000 + b"\n.",
        b"\x80\x04N",
        b"\x80\xff.",
        b"",
        b".",
        b"garbage",
        b"\xff",
        b"(lp0\n" * 3,
        b"N" * 70_000 + b".",
        b"\x80\x04K\x05K\x05R.",
    ],
    ids=range(29),
)
def test_malicious_pickles_are_rejected(code: bytes, tmp_path: Any) -> None:
    with pytest.raises(UnrunnableJob):
        read_arguments(bomb(code))


def refusal(code: bytes) -> str:
    """The reason for a rejection, or '' if the arguments are accepted."""
    try:
        read_arguments(bomb(code))
    except UnrunnableJob as error:
        return str(error)
    return ""


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_unrunnable_job(data: bytes) -> None:
    assert len(refusal(data)) < 1000


@given(st.data())
def test_damaged_pickles_raise_only_unrunnable_job(data: st.DataObject) -> None:
    image = bytearray(pickle.dumps(([1, "two", 3.0, {4: b"5"}, datetime.date(2024, 1, 1)], None), 4))
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    assert len(refusal(bytes(image))) < 1000


@pytest.mark.parametrize("code", [b"]" * 30_000 + b"a" * 29_999 + b".", b"(" * 30_000 + b"l" * 30_000 + b"."])
def test_deeply_nested_pickle_is_rejected(code: bytes) -> None:
    with pytest.raises(UnrunnableJob, match="must be a list and a dictionary"):
        read_arguments(bomb(code))


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ({"qw_args": b'[1, "\xc3\xa4", [null]]'}, ((1, "ä", [None]), {})),
        ({"qw_kwargs": '{"a": {"b": 1}}'}, ((), {"a": {"b": 1}})),
        ({"qw_args": b"[]", "qw_kwargs": b"{}", "args": b"cos\nsystem\n.", "kwargs": b""}, ((), {})),
    ],
)
def test_json_arguments_are_read(given: dict[str, Any], call: Any) -> None:
    assert read_arguments(given) == call


@pytest.mark.parametrize(
    "given",
    [
        {"qw_args": b"{}"},
        {"qw_args": b"5"},
        {"qw_kwargs": b"[]"},
        {"qw_args": b"["},
        {"qw_args": b"[" * 60_000},
        {"qw_args": b"\xff"},
        {"qw_args": b""},
        {"qw_args": b"[" + b"9" * 50_000 + b"]"},
        {"qw_kwargs": b'{"a": "' + b"x" * 10_000_000 + b'"}'},
        {"args": pickle.dumps(())},
        {"args": pickle.dumps([]), "kwargs": pickle.dumps({})},
        {"args": pickle.dumps(()), "kwargs": pickle.dumps({1: 2})},
        {"args": "text", "kwargs": pickle.dumps({})},
    ],
    ids=range(13),
)
def test_arguments_of_other_types_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(UnrunnableJob) as caught:
        read_arguments(given)
    assert len(str(caught.value)) < 1000


def test_all_pickle_operations_are_allowed_or_rejected() -> None:
    """Operations added by new Python versions are rejected until they have been reviewed."""
    known = {operation.name for operation in pickletools.opcodes}
    refused = {
        "BINPERSID", "BINSTRING", "EXT1", "EXT2", "EXT4", "INST", "NEWOBJ_EX", "NEXT_BUFFER", "OBJ",
        "PERSID", "READONLY_BUFFER", "SHORT_BINSTRING", "STRING",
    }  # fmt: skip
    assert known - OPERATIONS == refused
