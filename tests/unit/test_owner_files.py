"""Owner files: what they tell about their consumer while it runs and after it has ended."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from qworker.clock import boot_id
from qworker.process.owner_files import (
    LOOKS_AGAIN,
    NEIGHBOURS,
    STRAY,
    LocalDeaths,
    OwnerFiles,
    copied_tags,
    delete_files,
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


def test_owner_counts_as_dead_once_its_lock_is_released(tmp_path: Path) -> None:
    held = holding(tmp_path)
    lock = held.lock
    assert lock == lock_beside(held.running)
    assert not died(lock, BOOT)
    held.let_go()
    assert died(lock, BOOT)
    assert not died(lock, "another boot, perhaps of another machine")


def test_concurrent_liveness_checks_do_not_interfere(tmp_path: Path) -> None:
    import fcntl

    held = holding(tmp_path)
    lock = held.lock
    held.let_go()
    with open(lock, "rb") as checking:
        fcntl.flock(checking, fcntl.LOCK_SH)
        assert died(lock, BOOT)


def test_missing_files_tell_nothing(tmp_path: Path) -> None:
    for path in ("", str(tmp_path / "none.lock")):
        assert not died(path, BOOT)
    assert running_tags("") is None
    assert running_tags(str(tmp_path / "none.running")) is None


def test_other_files_are_neither_read_nor_removed(tmp_path: Path) -> None:
    names = ("passwd", "1.lock", "1.0123456789ab.lock.txt", "1.0123456789ab.running")
    for name in names:
        path = tmp_path / name
        path.write_bytes(b"kept")
        assert not died(str(path), BOOT) or name.endswith(".running")
        assert running_tags(str(path)) is None or name.endswith(".running")
        if not name.endswith(".running"):
            delete_files(str(path))
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    assert not died("1.0123456789ab.lock\0", BOOT)


def test_both_files_of_a_dead_consumer_are_removed(tmp_path: Path) -> None:
    held = holding(tmp_path)
    Path(held.running).touch()
    delete_files(held.lock)
    assert os.listdir(tmp_path) == []


def test_invalid_copied_tags_are_skipped() -> None:
    assert copied_tags("1 22 x -3 \u00b2 99999999999999999999999") == {1, 22}


def test_lock_is_kept_across_generations_and_recreated_if_deleted(tmp_path: Path) -> None:
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


def test_missing_directory_means_no_owner_files(tmp_path: Path) -> None:
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


def test_running_tags_are_copied_on_change_and_retried_after_failure(tmp_path: Path) -> None:
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
    held.take()  # a new generation, for which nothing has been copied yet
    held.copy_running(copies.append)
    assert copies == [{7, 9}, {7, 9}]


def test_truncated_running_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "1.0123456789ab.running"
    path.write_bytes((5).to_bytes(8, "little") + b"\x01\x02")
    assert running_tags(str(path)) == {5}


def test_clean_exit_removes_both_files(tmp_path: Path) -> None:
    held = holding(tmp_path)
    Path(held.running).touch()
    with held.ending():
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []
    assert held.lock == ""


def test_failed_exit_leaves_the_lock_of_a_dead_owner(tmp_path: Path) -> None:
    held = holding(tmp_path)
    lock = held.lock
    Path(held.running).touch()
    with pytest.raises(ConnectionError), held.ending():
        raise ConnectionError
    assert [str(path) for path in tmp_path.iterdir()] == [lock]
    assert died(lock, BOOT)


def test_tidy_deletes_only_old_files_of_dead_owners(tmp_path: Path) -> None:
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


def test_runtime_directory_must_not_be_a_symlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert runtime_directory() == tmp_path / "qworker"
    (tmp_path / "qworker").rmdir()
    (tmp_path / "qworker").symlink_to(elsewhere)
    assert runtime_directory() is None


def test_local_deaths_are_the_free_locks_beside_ours(tmp_path: Path) -> None:
    own, other = holding(tmp_path), holding(tmp_path)
    deaths, lock = LocalDeaths(), other.lock
    assert deaths.look(own.running) == set()
    other.let_go()
    assert deaths.look(own.running) == {lock}
    assert deaths.look("") == set()


def test_a_lock_is_only_ignored_while_it_stays_free(tmp_path: Path) -> None:
    """A consumer creates its lock before it takes it."""
    own, other = holding(tmp_path), holding(tmp_path)
    deaths, lock = LocalDeaths(), other.lock
    other.let_go()
    deaths.ignore({lock})
    assert deaths.look(own.running) == set()
    other.take()
    assert [deaths.look(own.running) for _ in range(LOOKS_AGAIN)] == [set()] * LOOKS_AGAIN
    other.let_go()
    assert deaths.look(own.running) == {lock}


def test_ignored_locks_are_examined_only_now_and_then(tmp_path: Path) -> None:
    """There may be hundreds, and an idle worker looks every second."""
    own, other = holding(tmp_path), holding(tmp_path)
    deaths, lock = LocalDeaths(), other.lock
    other.let_go()
    deaths.ignore({lock})
    assert deaths.look(own.running) == set()
    other.take()
    other.let_go()
    assert [deaths.look(own.running) for _ in range(3 * LOOKS_AGAIN)] == [set()] * 3 * LOOKS_AGAIN


def test_looks_at_a_large_fleet_examine_a_few_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the looks of a hundred idle workers would examine ten thousand locks a second."""
    fleet = [holding(tmp_path) for _ in range(60)]
    opened: list[str] = []
    open_ = os.open

    def counting(path: Any, *more: Any) -> int:
        opened.append(str(path))
        return open_(path, *more)

    monkeypatch.setattr(os, "open", counting)
    deaths = [LocalDeaths() for _ in fleet]
    for each, own in zip(deaths, fleet, strict=True):
        assert each.look(own.running) == set()
    assert len(opened) == len(fleet) * (len(fleet) - 1), "the first look examines all"
    opened.clear()
    for each, own in zip(deaths, fleet, strict=True):
        assert each.look(own.running) == set()
    assert len(opened) == (NEIGHBOURS + STRAY) * len(fleet)
    assert set(opened) == {own.lock for own in fleet}, "the neighbours' alone are all"


def test_every_death_in_a_large_fleet_is_noticed_by_its_neighbours(tmp_path: Path) -> None:
    fleet = [holding(tmp_path) for _ in range(40)]
    locks = [own.lock for own in fleet]
    deaths = [LocalDeaths() for _ in fleet]
    for each, own in zip(deaths, fleet, strict=True):
        each.look(own.running)
    for own in fleet[:30]:
        own.let_go()
    found = [each.look(own.running) for each, own in zip(deaths[30:], fleet[30:], strict=True)]
    assert set(locks[:30]) in found, "who finds one looks for all"
    assert all(each in (set(), set(locks[:30])) for each in found)


def test_consumers_of_other_brokers_are_not_examined(tmp_path: Path) -> None:
    own, other = OwnerFiles(lambda: tmp_path, "a"), OwnerFiles(lambda: tmp_path, "b")
    own.take()
    other.take()
    other.let_go()
    deaths = LocalDeaths()
    assert deaths.look(own.running) == set()
    same = OwnerFiles(lambda: tmp_path, "a")
    same.take()
    lock = same.lock
    same.let_go()
    assert deaths.look(own.running) == {lock}


def test_a_missing_directory_of_locks_has_no_deaths(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    own = holding(directory)
    shutil.rmtree(directory)
    assert LocalDeaths().look(own.running) == set()
