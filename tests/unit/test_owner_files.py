"""The files of a holder: what they say of it while it lives, when it has died, and when it ends in order."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from qworker.clock import boot_id
from qworker.process.owner_files import (
    OwnerFiles,
    bury,
    copied_tags,
    died,
    lock_beside,
    running_tags,
    runtime_directory,
)
from qworker.process.running_file import RunningFile

BOOT = boot_id()
NO_PROCESS = 4194304  # larger than any pid


def holding(directory: Path) -> OwnerFiles:
    made = OwnerFiles(lambda: directory)
    made.take()
    return made


def test_who_holds_the_lock_lives_and_who_let_go_is_dead(tmp_path: Path) -> None:
    held = holding(tmp_path)
    lock = held.lock
    assert lock == lock_beside(held.running)
    assert not died(lock, BOOT)
    held.let_go()
    assert died(lock, BOOT)
    assert not died(lock, "another boot, perhaps of another machine")


def test_two_who_ask_at_once_do_not_mislead_each_other(tmp_path: Path) -> None:
    import fcntl

    held = holding(tmp_path)
    lock = held.lock
    held.let_go()
    with open(lock, "rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert died(lock, BOOT)


def test_a_file_that_is_not_here_says_nothing(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "none.lock")):
        assert not died(path, BOOT)
    assert running_tags("") is None
    assert running_tags(str(tmp_path / "none.running")) is None


def test_files_that_are_no_consumers_are_left_alone(tmp_path: Path) -> None:
    names = ("passwd", "1.lock", "1.0123456789ab.lock.txt", "1.0123456789ab.running")
    for name in names:
        path = tmp_path / name
        path.write_bytes(b"kept")
        assert not died(str(path), BOOT) or name.endswith(".running")
        assert running_tags(str(path)) is None or name.endswith(".running")
        if not name.endswith(".running"):
            bury(str(path))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert not died("1.0123456789ab.lock\0", BOOT)


def test_of_a_dead_consumer_both_files_go(tmp_path: Path) -> None:
    held = holding(tmp_path)
    Path(held.running).touch()
    bury(held.lock)
    assert os.listdir(tmp_path) == []


def test_what_was_copied_is_read_as_far_as_it_is_tags() -> None:
    assert copied_tags("1 22 x -3 \u00b2 99999999999999999999999") == {1, 22}


def test_a_lock_is_kept_for_the_next_epoch_and_made_anew_where_it_was_deleted(tmp_path: Path) -> None:
    held = holding(tmp_path)
    lock = held.lock
    before = os.stat(lock).st_ino
    held.take()
    assert (held.lock, os.stat(lock).st_ino) == (lock, before)
    os.unlink(lock)
    held.take()
    assert held.lock == lock
    assert not died(lock, BOOT)
    held.let_go()
    assert died(lock, BOOT)


def test_without_a_place_there_is_neither_lock_nor_marks(tmp_path: Path) -> None:
    nowhere = OwnerFiles(lambda: None)
    nowhere.take()
    nowhere.tidy()
    assert (nowhere.lock, nowhere.running) == ("", "")
    missing = OwnerFiles(lambda: tmp_path / "missing")
    missing.take()
    missing.tidy()
    assert missing.lock == ""
    with missing.ending():
        pass


def test_slots_are_copied_when_they_change_and_until_the_copy_is_made(tmp_path: Path) -> None:
    held = holding(tmp_path)
    copies: list[set[int]] = []
    held.copy_running(copies.append)
    assert copies == []
    slots = RunningFile(held.running)
    slots.set(0, 7)
    slots.begin(9)

    def fail(tags: set[int]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        held.copy_running(fail)
    held.copy_running(copies.append)
    held.copy_running(copies.append)
    assert copies == [{7, 9}]
    assert running_tags(held.running) == {7, 9}
    held.take()  # another epoch, of which nothing was copied yet
    held.copy_running(copies.append)
    assert copies == [{7, 9}, {7, 9}]


def test_torn_marks_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    path = tmp_path / "1.0123456789ab.running"
    path.write_bytes((5).to_bytes(8, "little") + b"\x01\x02")
    assert running_tags(str(path)) == {5}


def test_in_the_end_nothing_is_left(tmp_path: Path) -> None:
    held = holding(tmp_path)
    Path(held.running).touch()
    with held.ending():
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []
    assert held.lock == ""


def test_when_nothing_could_be_given_back_the_lock_says_that_the_holder_is_dead(tmp_path: Path) -> None:
    held = holding(tmp_path)
    lock = held.lock
    Path(held.running).touch()
    with pytest.raises(ConnectionError), held.ending():
        raise ConnectionError
    assert [str(path) for path in tmp_path.iterdir()] == [lock]
    assert died(lock, BOOT)


def test_what_the_long_dead_left_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    alive = holding(tmp_path)
    Path(alive.running).touch()
    names = [
        f"{NO_PROCESS}.{name}"
        for name in ("old.running", "old.lock", "kept.running", "kept.lock", "new.running")
    ]
    names += [f"{os.getpid()}.other.running", "what.txt", "no-number.running"]
    for name in names:
        (tmp_path / name).touch()
        age = 0 if "new" in name else 100_000
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    os.utime(alive.lock, (0, 0))
    os.utime(alive.running, (0, 0))
    alive.tidy([f"{NO_PROCESS}.kept.running"])
    gone = {f"{NO_PROCESS}.old.running", f"{NO_PROCESS}.old.lock"}
    own = {Path(alive.lock).name, Path(alive.running).name}
    assert {path.name for path in tmp_path.iterdir()} == (set(names) | own) - gone
    alive.tidy([f"{NO_PROCESS}.kept.running"], age=0.0)
    assert f"{NO_PROCESS}.new.running" not in {path.name for path in tmp_path.iterdir()}


def test_a_directory_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert runtime_directory() == tmp_path / "qworker"
    (tmp_path / "qworker").rmdir()
    (tmp_path / "qworker").symlink_to(elsewhere)
    assert runtime_directory() is None
