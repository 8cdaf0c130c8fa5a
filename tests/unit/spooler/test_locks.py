"""File locks, within one process and between two."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.spooler.files.locks import DescriptionLock, FileLock, Locked, RecordLock, best_lock

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
TRY = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(1)
"""


@pytest.fixture(params=[DescriptionLock, RecordLock])
def lock(request: pytest.FixtureRequest) -> FileLock:
    if request.param is DescriptionLock and not hasattr(fcntl, "F_OFD_SETLK"):
        pytest.skip("this system has no locks of open file descriptions")
    return request.param()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "job").write_bytes(b"content")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_lock_is_exclusive(lock: FileLock, directory: int) -> None:
    file = lock.acquire("job", directory)
    with pytest.raises(Locked):
        lock.acquire("job", directory)
    assert lock.is_held("job", directory)
    assert os.read(file, 9) == b"content"
    lock.release(file)
    assert not lock.is_held("job", directory)
    lock.release(lock.acquire("job", directory))


def test_record_lock_of_another_process_is_detected(lock: FileLock, directory: int, tmp_path: Path) -> None:
    """uWSGI uses record locks."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "job")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(Locked):
            lock.acquire("job", directory)
        assert lock.is_held("job", directory)
        other.kill()
    assert not lock.is_held("job", directory)
    lock.release(lock.acquire("job", directory))


def test_lock_excludes_record_locks_of_other_processes(
    lock: FileLock, directory: int, tmp_path: Path
) -> None:
    file = lock.acquire("job", directory)
    command = [sys.executable, "-c", TRY, str(tmp_path / "job")]
    assert subprocess.run(command).returncode == 1
    lock.is_held("job", directory)  # this must not release the lock
    assert subprocess.run(command).returncode == 1
    lock.release(file)
    assert subprocess.run(command).returncode == 0


def test_links_are_not_followed(lock: FileLock, directory: int, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("job")
    with pytest.raises(OSError, match=r"symbolic|Too many"):
        lock.acquire("link", directory)


def test_missing_file_cannot_be_locked(lock: FileLock, directory: int) -> None:
    with pytest.raises(FileNotFoundError):
        lock.acquire("gone", directory)
    with pytest.raises(FileNotFoundError):
        lock.is_held("gone", directory)


def test_descriptor_is_not_inherited(lock: FileLock, directory: int) -> None:
    file = lock.acquire("job", directory)
    assert not os.get_inheritable(file)
    lock.release(file)


def test_record_locks_of_one_process_exclude_each_other(directory: int) -> None:
    one, other = RecordLock(), RecordLock()
    file = one.acquire("job", directory)
    with pytest.raises(Locked):
        other.acquire("job", directory)
    one.release(file)
    other.release(other.acquire("job", directory))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/", DescriptionLock),
        ("/srv/jobs", RecordLock),
        ("/srv/jobs/1", RecordLock),
        ("/srv/jobs2", DescriptionLock),
        ("/srv/jobs/local/x", DescriptionLock),
        ("/mnt/my jobs/x", RecordLock),
        ("/twice", DescriptionLock),
    ],
)
def test_record_locks_are_used_on_network_file_systems(
    tmp_path: Path, place: str, kind: type[FileLock]
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/root / ext4 rw 0 0\n"
        "server:/jobs /srv/jobs nfs4 rw,vers=4.2 0 0\n"
        "/dev/sdb /srv/jobs/local ext4 rw 0 0\n"
        "//server/jobs /mnt/my\\040jobs cifs rw 0 0\n"
        "server:/a /twice nfs rw 0 0\n"
        "tmpfs /twice tmpfs rw 0 0\n"
    )
    assert type(best_lock(place, str(mounts))) is kind


def test_description_locks_are_used_if_mounts_are_unknown(tmp_path: Path) -> None:
    assert type(best_lock("/", str(tmp_path / "none"))) is DescriptionLock
    (tmp_path / "odd").write_bytes(b"\xff\xfe\n\n")
    assert type(best_lock("/", str(tmp_path / "odd"))) is DescriptionLock
