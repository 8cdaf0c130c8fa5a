"""Sweeping deletes only files left by dead processes."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.files import writing
from qworker.spooler.files.attempts import FOLDER
from qworker.spooler.files.packet import DEAD, PREFIX, TEMPORARY
from qworker.spooler.files.sweeping import sweep_all
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import clock_of_files, files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a job, one with a priority, and one set aside, which must be kept."""
    path = tmp_path / "jobs"
    path.mkdir()
    writer = Writer(path)
    writer.write({"n": 1})
    with closing(SpoolDirectory(path, clock=clock_of_files())) as directory:
        claim = directory.next()
        assert claim is not None
        claim.set_aside("no")
    writer.write({"n": 2})
    writer.write({"n": 3}, priority=1)
    return path


def leave_files(place: Path) -> list[Path]:
    """Create files of dead processes: two temporary files, a note, and two attempt counters."""
    (place / FOLDER).mkdir()
    found = [
        place / f"{TEMPORARY}{PREFIX}h_1",
        place / "1" / f"{TEMPORARY}{PREFIX}h_2",
        place / DEAD / f"{PREFIX}h_3.json",
        place / FOLDER / f"{PREFIX}h_4",
        place / FOLDER / f"{PREFIX}h_4.returns",
    ]
    for path in found:
        path.write_text("1")
    return found


def test_old_files_are_deleted_and_jobs_are_kept(place: Path) -> None:
    jobs = files(place)
    assert sweep_all([str(place)], older_than=-60) == 0
    gone = leave_files(place)
    assert sweep_all([str(place)], older_than=-60) == len(gone)
    assert files(place) == jobs


def test_recent_files_are_kept(place: Path) -> None:
    leave_files(place)
    before = files(place)
    assert sweep_all([str(place)], older_than=writing.STALE_SECONDS) == 0
    assert files(place) == before


def test_attempts_of_existing_jobs_are_kept(place: Path) -> None:
    leave_files(place)
    jobs = [Path(name).name for name in files(place) if Path(name).name.startswith(PREFIX)]
    kept = [name for name in jobs if "h_" not in name and not name.endswith(".json")]
    assert len(kept) == 3
    for name in kept:
        (place / FOLDER / name).write_text("1")
    sweep_all([str(place)], older_than=-60)
    assert sorted(path.name for path in (place / FOLDER).iterdir()) == sorted(kept)


def test_foreign_files_are_kept(place: Path) -> None:
    for folder in (place, place / DEAD, place / "other"):
        folder.mkdir(exist_ok=True)
        (folder / "mine.json").touch()
        (folder / f"{PREFIX}mine").touch()
    before = files(place)
    assert sweep_all([str(place)], older_than=-60) == 0
    assert files(place) == before


def test_missing_directory(place: Path) -> None:
    shutil.rmtree(place)
    assert sweep_all([str(place)], older_than=-60) == 0
