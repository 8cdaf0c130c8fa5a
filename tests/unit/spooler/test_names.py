"""Names of spool files: format, order, and valid priorities."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.errors import SpoolError
from qworker.spooler.files.packet import PREFIX, job_name, job_path, natural_key, path_key, priority_name
from tests.support.uwsgi_files import MANIFEST

ORDER = MANIFEST["order"]["uwsgi_order"]


def test_name_has_the_format_of_uwsgi() -> None:
    found = re.fullmatch(rf"{PREFIX}(.+)_(\d+)_(\d+)_(\d+)_(\d+)_(\d+)", job_name(1_700_000_000.000_25))
    assert found is not None
    assert found[2] == str(os.getpid())
    assert found.groups()[4:] == ("1700000000", "250")
    assert "/" not in found[1]


def test_names_of_one_process_sort_by_creation() -> None:
    names = [job_name(1_700_000_000.0) for _ in range(1_000)]
    assert sorted(names, key=natural_key) == names


def test_names_are_unique_among_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(job_name, [1_700_000_000.0] * 5_000))
    numbers = {name.split("_")[-4] for name in names}
    assert len(set(names)) == len(numbers) == 5_000


def test_paths_are_ordered_as_in_uwsgi() -> None:
    assert sorted(set(ORDER), key=path_key) == ORDER


def test_numbers_are_ordered_like_versions() -> None:
    order = ["000", "00", "01", "010", "09", "0", "1", "9", "10"]
    assert sorted(set(order), key=natural_key) == order


def test_natural_order_equals_strverscmp() -> None:
    try:
        compare = ctypes.CDLL("libc.so.6").strverscmp
    except (OSError, AttributeError):
        pytest.skip("this system's C library has no strverscmp()")
    names = st.lists(st.text("0019aZ_-.:/\x01é", max_size=9).map(str.encode), max_size=6)

    @given(names)
    def agree(names: list[bytes]) -> None:
        theirs = sorted(names, key=functools.cmp_to_key(compare))
        assert sorted(names, key=lambda name: natural_key(os.fsdecode(name))) == theirs

    agree()


@pytest.mark.parametrize(("priority", "name"), [(1, "1"), ("10", "10"), (b"02", "02"), ("", ""), (0, "0")])
def test_digits_are_valid_priorities(priority: str | bytes | int, name: str) -> None:
    assert priority_name(priority) == name


@pytest.mark.parametrize(
    "priority", ["high", "-1", "3x", "1/5", "..", ".", "../x", "/tmp", "1\0", "٣", "²", " 1", "9" * 256, -1]
)
def test_other_priorities_are_rejected(priority: str | int) -> None:
    with pytest.raises(SpoolError, match="digits"):
        priority_name(priority)


def test_words_can_be_allowed_as_priorities() -> None:
    assert priority_name("high", words=True) == "high"
    for name in ("..", ".", "a/b", "a\0", ".qw-dead", f"{PREFIX}x", "é" * 200, "9" * 256):
        with pytest.raises(SpoolError, match="plain name"):
            priority_name(name, words=True)


PARTS = st.one_of(st.sampled_from(["", ".", "..", "1", "02", "high", PREFIX, f"{PREFIX}a", "\0"]), st.text())


@given(st.lists(PARTS).map("/".join))
def test_job_path_accepts_only_paths_of_jobs(name: str) -> None:
    try:
        path = job_path(name)
    except SpoolError:
        return
    assert os.path.normpath(path) == path == name
    *folders, own = path.split("/")
    assert own.startswith(PREFIX)
    assert all(folder.isdigit() for folder in folders)


@pytest.mark.parametrize("name", [f"{PREFIX}a", f"10/{PREFIX}a", f"1/02/{PREFIX}a"])
def test_valid_job_paths(name: str) -> None:
    assert job_path(name) == name
