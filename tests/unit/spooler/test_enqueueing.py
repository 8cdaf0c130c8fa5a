"""Enqueueing: the arguments of uwsgi.spool(), and the file that it writes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import SpoolError
from qworker.spooler.files.packet import LARGEST, Packet, decode
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.uwsgi.enqueueing import Enqueuer, epoch
from tests.support.spools import files


@pytest.fixture
def enqueuer(tmp_path: Path) -> Enqueuer:
    return Enqueuer(SpoolerOptions((str(tmp_path / "a"), str(tmp_path / "b")), (str(tmp_path / "far"),)))


def written(enqueuer: Enqueuer, message: dict[Any, Any]) -> Packet:
    return decode(Path(enqueuer.enqueue(message)).read_bytes())


def test_dictionary_becomes_pairs_and_a_body(enqueuer: Enqueuer) -> None:
    message = {"text": "ä", b"bytes": b"\xff", "number": 5, "body": "ö"}
    before = dict(message)
    assert written(enqueuer, message) == (
        {b"text": "ä".encode(), b"bytes": b"\xff", b"number": b"5"},
        "ö".encode(),
    )
    assert message == before, "the dictionary of the caller is not changed"


def test_text_and_bytes_keys_are_the_same(enqueuer: Enqueuer) -> None:
    assert written(enqueuer, {"k": "a", b"k": "b", b"body": b"1", "body": b"2"}) == ({b"k": b"b"}, b"2")


@pytest.mark.parametrize("body", [b"", "", bytearray(), memoryview(b"")])
def test_empty_body_is_no_body(enqueuer: Enqueuer, body: object) -> None:
    assert written(enqueuer, {"body": body}) == ({}, b"")


@given(
    pairs=st.dictionaries(
        st.binary(min_size=1, max_size=20).filter(
            lambda key: key not in (b"at", b"spooler", b"priority", b"body")
        ),
        st.binary(max_size=50),
        max_size=8,
    ),
    body=st.binary(max_size=100),
)
def test_dictionaries_round_trip(tmp_path_factory: pytest.TempPathFactory, pairs: Any, body: bytes) -> None:
    place = tmp_path_factory.getbasetemp() / "any"
    path = Path(Enqueuer(SpoolerOptions((str(place),))).enqueue({**pairs, "body": body}))
    assert decode(path.read_bytes()) == (pairs, body)
    path.unlink()


def test_first_directory_is_the_default(enqueuer: Enqueuer, tmp_path: Path) -> None:
    assert Path(enqueuer.enqueue({})).parent == tmp_path / "a"
    only_external = Enqueuer(SpoolerOptions(external=(str(tmp_path / "far"), str(tmp_path / "b"))))
    assert Path(only_external.enqueue({})).parent == tmp_path / "far"


@pytest.mark.parametrize("which", ["b", "far", "far/", "link", "a/../b"])
def test_job_can_name_a_configured_directory(enqueuer: Enqueuer, tmp_path: Path, which: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "b")
    name = os.path.join(tmp_path, which)
    path = Path(enqueuer.enqueue({"spooler": name}))
    assert path.parent == Path(os.path.realpath(name))
    assert decode(path.read_bytes()).pairs == {b"spooler": os.fsencode(name)}, "the pair stays in the job"


@pytest.mark.parametrize("name", ["/tmp", "a", "", b"/nowhere", "/a\0b", 5, None.__class__, "../a", "\udcff"])
def test_unconfigured_directory_is_rejected(enqueuer: Enqueuer, tmp_path: Path, name: Any) -> None:
    with pytest.raises(SpoolError, match="absolute path of one of those that are configured"):
        enqueuer.enqueue({"spooler": name})
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("at", "pair"),
    [
        (1_900_000_000, b"1900000000"),
        (b"1900000000", b"1900000000"),
        ("1899999999.5", b"1899999999.5"),
        (1_899_999_999.5, b"1900000000"),
        (datetime.fromtimestamp(1_899_999_999.25, UTC), b"1900000000"),
    ],
)
def test_at_sets_the_file_time(enqueuer: Enqueuer, at: Any, pair: bytes) -> None:
    path = enqueuer.enqueue({"at": at})
    assert os.stat(path).st_mtime == 1_900_000_000
    assert decode(Path(path).read_bytes()).pairs == {b"at": pair}


@pytest.mark.parametrize("at", [0, b"0", "", b"", "0.0"])
def test_empty_time_is_now(at: Any) -> None:
    assert epoch(at) == 0


@pytest.mark.parametrize(
    "at",
    [
        "soon",
        b"\xff",
        "1e9",
        "nan",
        "inf",
        "1_0",
        "1" * 21,
        float("nan"),
        float("inf"),
        10**400,
        True,
        [],
        b"5 ",
    ],
)
def test_invalid_times_are_rejected(enqueuer: Enqueuer, tmp_path: Path, at: Any) -> None:
    with pytest.raises(SpoolError, match="due time of a job"):
        enqueuer.enqueue({"at": at})
    assert files(tmp_path) == []


def test_time_after_the_calendar_is_rejected(enqueuer: Enqueuer) -> None:
    with pytest.raises(SpoolError, match="due time of a job"):
        enqueuer.enqueue({"at": "9" * 20})


@pytest.mark.parametrize("priority", ["3", b"3", 3])
def test_priority_is_a_directory(enqueuer: Enqueuer, tmp_path: Path, priority: Any) -> None:
    path = Path(enqueuer.enqueue({"priority": priority}))
    assert path.parent == tmp_path / "a" / "3"
    assert decode(path.read_bytes()).pairs == {b"priority": b"3"}


@pytest.mark.parametrize(
    "priority", ["../b", "/tmp", ".", "..", "high", "-1", "a\0", b"\xff", None, True, 1.5, []]
)
def test_unsafe_priorities_are_rejected(enqueuer: Enqueuer, tmp_path: Path, priority: Any) -> None:
    with pytest.raises(SpoolError, match="priority"):
        enqueuer.enqueue({"priority": priority})
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    "message",
    [{"k": None}, {"k": 1.5}, {None: "v"}, {"": "v"}, {"k": True}, {"body": None}, {"body": 5}],
)
def test_invalid_pairs_are_rejected(enqueuer: Enqueuer, tmp_path: Path, message: Any) -> None:
    with pytest.raises(SpoolError):
        enqueuer.enqueue(message)
    assert files(tmp_path) == []


@pytest.mark.parametrize("size", [LARGEST, 65_536, 70_000, 10_000_000])
def test_oversized_values_are_rejected_and_bodies_are_not(
    enqueuer: Enqueuer, tmp_path: Path, size: int
) -> None:
    """uWSGI silently truncates the length to 16 bits."""
    with pytest.raises(SpoolError, match="65,535"):
        enqueuer.enqueue({"k": b"x" * size})
    assert files(tmp_path) == []
    assert written(enqueuer, {"k": "v", "body": b"x" * size}) == ({b"k": b"v"}, b"x" * size)
