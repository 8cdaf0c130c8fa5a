"""Writing jobs: the files that are written, and that nothing is left after an error."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qworker.errors import ConfigurationError, SpoolError
from qworker.spooler.files.packet import PREFIX, TEMPORARY, decode
from qworker.spooler.files.writing import NewJob, Sync, Writer, sweep, write_together
from tests.support.spools import files


def test_job_is_one_file(writer: Writer) -> None:
    path = Path(writer.write({"k": "v"}, b"body"))
    assert decode(path.read_bytes()) == ({b"k": b"v"}, b"body")
    assert path.name.startswith(PREFIX)
    assert files(writer.path) == [path.name]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_directory_is_created_without_parents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert stat.S_IMODE(os.stat(Writer(tmp_path / "a").path).st_mode) & 0o027 == 0
    assert caplog.messages == [f"created the missing spool directory {tmp_path}/a"]
    Writer(tmp_path / "a")
    assert len(caplog.messages) == 1
    with pytest.raises(ConfigurationError, match="cannot be created"):
        Writer(tmp_path / "b" / "c")


def test_file_instead_of_a_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="not a directory"):
        Writer(tmp_path / "file")


def test_world_writable_directory_is_rejected(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod o-w"):
        Writer(place)
    assert Writer(place, shared=True).path
    place.chmod(0o1777)
    assert Writer(place).path


def test_links_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert Writer(tmp_path / "link").path == str((tmp_path / "real").resolve())


@pytest.mark.parametrize(
    ("at", "due"),
    [
        (1_900_000_000, 1_900_000_000),
        (1_900_000_000.001, 1_900_000_001),
        (datetime.fromtimestamp(1_900_000_000.5, UTC), 1_900_000_001),
        (5, 5),
    ],
)
def test_due_time_is_the_file_time(writer: Writer, at: float | datetime, due: int) -> None:
    """Rounded up: uWSGI compares whole seconds, and must not run it early."""
    assert os.stat(writer.write({}, at=at)).st_mtime_ns == due * 10**9


@pytest.mark.parametrize("at", [None, 0, 0.0])
def test_missing_time_is_now(writer: Writer, at: float | None) -> None:
    beside = Path(writer.path, "beside")
    path = writer.write({}, at=at)
    beside.touch()
    assert abs(os.stat(path).st_mtime - beside.stat().st_mtime) < 60


@pytest.mark.parametrize("at", ["soon", float("nan"), float("inf"), True, 1e300, -1e300])
def test_invalid_times_are_rejected(writer: Writer, at: float) -> None:
    with pytest.raises(SpoolError, match="due time of a job"):
        writer.write({}, at=at)
    assert files(writer.path) == []


def test_priority_is_a_directory(writer: Writer) -> None:
    path = writer.write({"k": "v"}, priority=2)
    assert os.path.dirname(path) == f"{writer.path}/2"
    writer.write({"k": "v"}, priority="2")
    assert len(os.listdir(f"{writer.path}/2")) == 2


@pytest.mark.parametrize("priority", ["../x", "a/b", "..", "high"])
def test_unsafe_priorities_are_rejected(writer: Writer, priority: str) -> None:
    with pytest.raises(SpoolError, match="priority"):
        writer.write({}, priority=priority)


def test_priority_that_is_a_link_is_rejected(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    Path(writer.path, "1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpoolError, match="not a directory"):
        writer.write({}, priority=1)
    assert files(tmp_path / "elsewhere") == []


def test_words_can_be_allowed_as_priorities(tmp_path: Path) -> None:
    assert Writer(tmp_path, words=True).write({}, priority="high").startswith(f"{tmp_path}/high/")


@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("many", [0, 1, 2, 5])
def test_write_many_writes_all_jobs(tmp_path: Path, sync: Sync, many: int) -> None:
    writer = Writer(tmp_path, sync=sync)
    paths = writer.write_many([NewJob({"n": n}, priority=n % 2) for n in range(many)])
    assert [decode(Path(path).read_bytes()).pairs for path in paths] == [
        {b"n": b"%d" % n} for n in range(many)
    ]
    assert len(files(tmp_path)) == many


def test_write_many_writes_all_or_none(writer: Writer) -> None:
    with pytest.raises(SpoolError, match="NoneType"):
        writer.write_many([NewJob({"n": 1}), NewJob({"n": None})])  # type: ignore[dict-item]
    assert files(writer.path) == []


def test_removed_directory_is_named(writer: Writer) -> None:
    os.rmdir(writer.path)
    with pytest.raises(SpoolError, match=r"spool: No such file.*nothing was enqueued"):
        writer.write({})
    os.mkdir(writer.path)
    writer.write({})


def test_failed_write_leaves_no_files(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SpoolError, match="No space left"):
        writer.write({"k": "v"})
    assert files(writer.path) == []


def test_partial_writes_are_completed(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    write, writev = os.write, os.writev
    monkeypatch.setattr(os, "writev", lambda file, parts: writev(file, [parts[0][:3]]))
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    path = writer.write({"key": "value"}, b"a body")
    assert decode(Path(path).read_bytes()) == ({b"key": b"value"}, b"a body")


def test_temporary_files_of_dead_writers_are_swept(tmp_path: Path) -> None:
    (tmp_path / f"{TEMPORARY}left").touch()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / f"{TEMPORARY}left").touch()
    (tmp_path / "other").touch()
    assert sweep(tmp_path, older_than=60) == 0
    assert sweep(tmp_path, older_than=-60) == 2
    assert files(tmp_path) == ["other"]
    assert sweep(tmp_path / "nowhere") == 0


def test_priority_directory_has_the_mode_of_its_parent(tmp_path: Path) -> None:
    """Writing there allows running code, so the mode must not depend on the umask."""
    before = os.umask(0)
    try:
        path = Writer(tmp_path / "spool").write({}, priority=3)
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o770)
        other = Writer(shared).write({}, priority=3)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o750
    assert stat.S_IMODE(os.stat(os.path.dirname(other)).st_mode) == 0o770


@pytest.mark.parametrize("sync", list(Sync))
def test_failed_rename_leaves_none_of_several_jobs(tmp_path: Path, sync: Sync) -> None:
    """The caller then writes all of them again, so those already written would run twice."""
    one, other = Writer(tmp_path / "one", sync=sync), Writer(tmp_path / "other", sync=sync)
    names = [f"{PREFIX}{number}" for number in range(3)]
    jobs = [NewJob({"k": "v"}, name=name) for name in names]
    os.mkdir(f"{other.path}/{names[1]}")
    for writer in (one, other):
        writer.write({}, priority=2)
    before = files(one.path), files(other.path)
    with pytest.raises(SpoolError, match="nothing was enqueued"):
        write_together([(one, jobs), (other, jobs)])
    with pytest.raises(SpoolError, match="nothing was enqueued"):
        other.write_many(jobs)
    assert (files(one.path), files(other.path)) == before
    assert not list(tmp_path.rglob(f"{TEMPORARY}*"))
    os.rmdir(f"{other.path}/{names[1]}")
    assert write_together([(one, jobs), (other, jobs)]) == [
        f"{writer.path}/{name}" for writer in (one, other) for name in names
    ]
