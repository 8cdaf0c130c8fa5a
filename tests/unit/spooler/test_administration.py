"""SpoolAdmin: changes under the lock, also if others change files between listing and acting."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.errors import SpoolError
from qworker.spooler.administration.admin import SpoolAdmin
from qworker.spooler.files.attempts import Attempts
from qworker.spooler.files.locks import RecordLock, best_lock
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import beside_or_far, files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture(params=["beside", "on another file system"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with beside_or_far(request.param, tmp_path) as path:
        yield path


def add(place: Path) -> str:
    return os.path.basename(Writer(place).write({"k": "v"}))


def test_acting_on_a_removed_or_claimed_job_is_an_error(place: Path) -> None:
    removed, taken = add(place), add(place)
    with closing(SpoolAdmin(place)) as admin, closing(SpoolDirectory(place)) as directory:
        assert {job.path for job in admin.waiting()} == {removed, taken}
        os.unlink(place / removed)
        claim = directory.next()
        assert claim is not None
        for act in (admin.remove, admin.retry, lambda name: admin.move(name, admin, "3")):
            with pytest.raises(SpoolError, match="there is no job"):
                act(removed)
            with pytest.raises(SpoolError, match="is running"):
                act(taken)
        assert claim.finish()
        with pytest.raises(SpoolError, match="there is no job"):
            admin.remove(taken)


def test_replaced_file_is_not_removed(place: Path) -> None:
    name = add(place)

    class Late:
        """A lock that replaces the file just after it was opened."""

        def acquire(self, path: str, directory: int) -> int:
            file = os.open(path, os.O_RDWR, dir_fd=directory)
            os.unlink(place / name)
            (place / name).write_text("another")
            return file

        def release(self, file: int) -> None:
            os.close(file)

        def is_held(self, path: str, directory: int) -> bool:
            return False

    with closing(SpoolAdmin(place, lock=Late())) as admin, pytest.raises(SpoolError):
        admin.remove(name)
    assert (place / name).read_text() == "another"


def test_moved_job_is_locked_until_it_has_left_the_directory(place: Path, elsewhere: Path) -> None:
    name = add(place)
    image = (place / name).read_bytes()
    lock = best_lock()
    seen = []

    class Watched:
        """The lock, recording the files of both directories before it is released."""

        acquire = staticmethod(lock.acquire)
        is_held = staticmethod(lock.is_held)

        def release(self, file: int) -> None:
            seen.append((files(place), (elsewhere / name).read_bytes()))
            lock.release(file)

    with closing(SpoolAdmin(place, lock=Watched())) as admin, closing(SpoolAdmin(elsewhere)) as target:
        admin.move(name, target)
    assert seen == [([], image)]


def test_administration_with_record_locks(place: Path, elsewhere: Path) -> None:
    """A record lock is lost when the process closes any descriptor of the file."""
    name, other = add(place), add(place)
    with (
        closing(SpoolAdmin(place, lock=RecordLock())) as admin,
        closing(SpoolAdmin(elsewhere)) as target,
    ):
        assert [job.running for job in admin.waiting()] == [False, False]
        admin.retry(name)
        admin.move(name, target)
        admin.remove(other)
    assert files(place) == []
    assert files(elsewhere) == [name]


@pytest.mark.parametrize("attributes", [True, False])
def test_reset_forgets_attempts(place: Path, attributes: bool) -> None:
    name = add(place)
    directory = os.open(place, os.O_RDONLY)
    file = os.open(place / name, os.O_RDWR)
    attempts = Attempts(directory, attributes=attributes)
    assert (attempts.count(file, name), attempts.count(file, name)) == (1, 2)
    attempts.reset(file, name)
    assert attempts.read(file, name) == attempts.read(str(place / name), name) == 0
    attempts.reset(file, name)
    assert files(place) == [name]
    os.close(file)
    os.close(directory)
