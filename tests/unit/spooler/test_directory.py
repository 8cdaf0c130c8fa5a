"""Spool directories: which jobs are found, in which order, without needless file operations."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qworker.spooler.files.packet import PREFIX
from qworker.spooler.files.writing import NewJob, Writer
from qworker.spooler.watching import inotify
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.testing import FakeClock
from tests.support.spools import work_off
from tests.support.uwsgi_files import MANIFEST


def has_inotify() -> bool:
    try:
        inotify.Inotify().close()
    except OSError:
        return False
    return True


needs_inotify = pytest.mark.skipif(
    not has_inotify(), reason="this system tells nothing of files: it needs Linux"
)


@pytest.fixture
def directory(writer: Writer, clock: FakeClock) -> Iterator[SpoolDirectory]:
    directory = SpoolDirectory(writer.path, clock=clock)
    yield directory
    directory.close()


@pytest.fixture
def ordered(writer: Writer, clock: FakeClock) -> Iterator[SpoolDirectory]:
    directory = SpoolDirectory(writer.path, ordered=True, clock=clock)
    yield directory
    directory.close()


def numbers(directory: SpoolDirectory) -> list[int]:
    return [int(pairs[b"n"]) for pairs in work_off(directory)]


def test_order_is_that_of_uwsgi(ordered: SpoolDirectory) -> None:
    for file in MANIFEST["order"]["files"]:
        path = Path(ordered.path, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x11\0\0\0")
    found = []
    while (claim := ordered.next()) is not None:
        found.append(claim.path)
        claim.finish()
    assert found == MANIFEST["order"]["uwsgi_order"]


def test_priorities_are_ignored_without_ordering(directory: SpoolDirectory, writer: Writer) -> None:
    writer.write({"n": 1}, priority=1)
    writer.write({"n": 2})
    assert numbers(directory) == [2]


@needs_inotify
def test_late_job_of_higher_priority_is_run_first(ordered: SpoolDirectory, writer: Writer) -> None:
    writer.write_many(NewJob({"n": n}, priority=5) for n in (1, 2, 3))
    claim = ordered.next()
    assert claim is not None
    claim.finish()
    writer.write({"n": 9}, priority=1)  # its directory did not exist before
    ordered.wait(0)
    assert numbers(ordered) == [9, 2, 3]


@needs_inotify
def test_new_job_is_noticed(directory: SpoolDirectory, writer: Writer) -> None:
    assert directory.next() is None
    writer.write({"n": 1})
    assert numbers(directory) == [1]


@needs_inotify
def test_job_in_a_new_priority_is_noticed(ordered: SpoolDirectory, writer: Writer) -> None:
    assert ordered.next() is None
    writer.write({"n": 1}, priority=7)
    assert numbers(ordered) == [1]
    writer.write({"n": 2}, priority=7)
    assert numbers(ordered) == [2]


@needs_inotify
@pytest.mark.timeout(60)
def test_new_job_ends_the_wait(directory: SpoolDirectory, writer: Writer) -> None:
    directory._frequency = lambda: 3600.0
    assert directory.next() is None
    threading.Timer(0.05, writer.write, [{"n": 1}]).start()
    while not (found := numbers(directory)):
        directory.wait()
    assert found == [1]


@pytest.mark.timeout(60)
def test_ending_a_claim_in_another_thread_ends_the_wait(directory: SpoolDirectory, writer: Writer) -> None:
    writer.write({"n": 1})
    claim = directory.next()
    assert claim is not None
    threading.Timer(0.05, claim.give_back).start()
    while (again := directory.next()) is None:
        directory.wait()
    again.finish()


def test_poll_finds_jobs_without_a_notification(writer: Writer, clock: FakeClock) -> None:
    directory = SpoolDirectory(writer.path, frequency=30, clock=clock)
    directory._watcher.close()
    assert directory.next() is None
    writer.write({"n": 1})
    clock.advance(29)
    assert directory.next() is None
    clock.advance(2)
    assert numbers(directory) == [1]
    directory.close()


def test_job_starts_at_its_due_time(directory: SpoolDirectory, writer: Writer, clock: FakeClock) -> None:
    start = clock.now()
    writer.write({"n": 3}, at=start + 3)
    writer.write({"n": 1}, at=start + 1)
    writer.write({"n": 0}, at=start - 5)
    assert numbers(directory) == [0]
    clock.advance(1)
    assert numbers(directory) == [1]
    clock.advance(1.9)
    assert numbers(directory) == []
    clock.advance(0.1)
    assert numbers(directory) == [3]


@needs_inotify
def test_job_follows_a_changed_due_time(directory: SpoolDirectory, writer: Writer, clock: FakeClock) -> None:
    path = writer.write({"n": 1}, at=clock.now() + 1000)
    assert directory.next() is None
    os.utime(path, (5, 5))
    assert numbers(directory) == [1]
    path = writer.write({"n": 2}, at=clock.now() + 10)
    assert directory.next() is None
    os.utime(path, (5, clock.now() + 20))
    clock.advance(15)
    assert directory.next() is None
    clock.advance(5)
    assert numbers(directory) == [2]


def test_priority_directory_with_a_future_time_is_skipped(
    ordered: SpoolDirectory, writer: Writer, clock: FakeClock
) -> None:
    writer.write({"n": 1}, priority=1)
    os.utime(f"{writer.path}/1", (5, clock.now() + 100))
    writer.write({"n": 2}, priority=2)
    assert numbers(ordered) == [2]
    clock.advance(101)
    assert numbers(ordered) == [1]


class Opened:
    """Records the files that are opened in the directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        real = os.open

        def counting(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if os.path.basename(path).startswith(PREFIX):
                self.paths.append(path)
            return real(path, flags, mode, dir_fd=dir_fd)

        monkeypatch.setattr(os, "open", counting)


def test_delayed_jobs_are_not_opened(
    directory: SpoolDirectory, writer: Writer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_many(NewJob({"n": n}, at=clock.now() + 1000 + n) for n in range(300))
    opened = Opened(monkeypatch)
    for _ in range(5):
        assert directory.next() is None
        clock.advance(40)
    assert opened.paths == []


@needs_inotify
def test_spoolers_do_not_wake_each_other_by_failed_locks(
    directory: SpoolDirectory, writer: Writer, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failed attempt to lock closes a file that was open for writing, which notifies all spoolers."""
    others = [SpoolDirectory(writer.path, clock=clock) for _ in range(3)]
    writer.write({"n": 1})
    claim = directory.next()
    assert claim is not None
    opened = Opened(monkeypatch)
    for _ in range(200):
        for other in others:
            assert other.next() is None
        assert directory.next() is None
        clock.advance(0.1)
    assert len(opened.paths) < 20
    claim.give_back()
    clock.advance(3)
    found = [numbers(other) for other in others]
    assert sorted(found) == [[], [], [1]], "one of them notices the release"
    for other in others:
        other.close()


@needs_inotify
def test_job_held_by_another_is_retried_when_released(
    directory: SpoolDirectory, writer: Writer, clock: FakeClock
) -> None:
    """Also if a child process has failed to lock it, and does not say why."""
    writer.write({"n": 1})
    other = SpoolDirectory(writer.path, clock=clock)
    held = other.next()
    path = directory.next_path()
    assert held is not None
    assert path == held.path
    directory.tried([path], clock.now())
    for _ in range(3):
        clock.advance(10)
        assert directory.next_path() is None, "a held file is refused again"
    assert directory.rest() > 1
    held.let_go()
    directory.take_in()
    clock.advance(10)
    assert directory.next_path() == path
    other.close()


def test_recreated_directory_is_watched(directory: SpoolDirectory, writer: Writer, clock: FakeClock) -> None:
    assert directory.next() is None
    shutil.rmtree(writer.path)
    clock.advance(31)
    assert directory.next() is None
    os.mkdir(writer.path)
    writer.write({"n": 1})
    clock.advance(31)
    assert numbers(directory) == [1]
    writer.write({"n": 2})
    clock.advance(31)
    assert numbers(directory) == [2]


def test_clock_set_back_loses_no_jobs(directory: SpoolDirectory, writer: Writer, clock: FakeClock) -> None:
    writer.write({"n": 1}, at=clock.now() + 10)
    assert directory.next() is None
    clock.jump(-3600)
    assert directory.next() is None
    clock.jump(3611)
    assert numbers(directory) == [1]


def test_deep_tree_is_scanned(ordered: SpoolDirectory, writer: Writer) -> None:
    path = Path(writer.path, *["1"] * 1200)
    subprocess.run(["mkdir", "-p", path], check=True)  # too deep for os.makedirs()
    (path / f"{PREFIX}deep").write_bytes(b"\x11\0\0\0")
    assert work_off(ordered) == [{}]
    subprocess.run(["rm", "-r", f"{writer.path}/1"], check=True)


def test_closing_twice(directory: SpoolDirectory) -> None:
    directory.close()
    directory.close()


def test_directory_is_rescanned_after_an_inotify_overflow(directory: SpoolDirectory, writer: Writer) -> None:
    assert directory.next() is None
    writer.write({"n": 1})
    watcher = directory._watcher
    if watcher._inotify is not None:
        watcher._inotify.read()
        lost = [(-1, inotify.OVERFLOW, "")]
        reads: Callable[[], list[inotify.Event]] = lambda: [lost.pop()] if lost else []  # noqa: E731
        watcher._inotify.read = reads  # type: ignore[method-assign]
    else:
        directory.rescan()
    assert numbers(directory) == [1]
