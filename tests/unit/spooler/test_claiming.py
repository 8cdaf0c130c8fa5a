"""Claims: claiming and ending jobs, and files that are not run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qworker.spooler.files.attempts import ATTRIBUTE, FOLDER, Attempts
from qworker.spooler.files.claiming import ClaimedFile
from qworker.spooler.files.locks import RecordLock
from qworker.spooler.files.packet import PREFIX
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from qworker.testing import FakeClock
from tests.support.spools import files, work_off
from tests.support.uwsgi_files import Sample, samples

Open = Callable[..., SpoolDirectory]


@pytest.fixture
def spool(writer: Writer, clock: FakeClock, request: pytest.FixtureRequest) -> Open:
    """A function that opens the directory, each time for another spooler."""

    def opened(**options: object) -> SpoolDirectory:
        directory = SpoolDirectory(writer.path, clock=clock, **options)
        request.addfinalizer(directory.close)
        return directory

    return opened


def claimed(directory: SpoolDirectory) -> ClaimedFile:
    claim = directory.next()
    assert claim is not None
    return claim


def dead_reasons(writer: Writer) -> list[str]:
    """The reasons in the notes of the dead-lettered jobs."""
    return [json.loads(path.read_text())["reason"] for path in Path(writer.path).glob(".qw-dead/*.json")]


def test_job_is_claimed_and_finished(spool: Open, writer: Writer) -> None:
    path = writer.write({"k": "v"}, b"body")
    claim = claimed(spool())
    assert (claim.pairs, claim.body) == ({b"k": b"v"}, b"body")
    assert claim.name == claim.path == os.path.basename(path)
    assert claim.finish()
    assert files(writer.path) == []


@pytest.mark.parametrize("lock", [None, RecordLock()])
def test_held_job_is_not_claimed_by_others(spool: Open, writer: Writer, lock: RecordLock | None) -> None:
    writer.write({"k": "v"})
    one, other = spool(lock=lock), spool(lock=lock)
    claim = claimed(one)
    assert one.next() is None
    assert other.next() is None
    claim.finish()
    other.rescan()
    assert other.next() is None


def test_released_job_is_claimed_by_another_spooler(spool: Open, writer: Writer, clock: FakeClock) -> None:
    writer.write({"k": "v"})
    one, other = spool(), spool()
    claim = claimed(one)
    assert other.next() is None
    claim.give_back()
    clock.advance(1.0)
    assert work_off(other) == [{b"k": b"v"}]


def test_bodies_of_all_sizes_are_read_completely(spool: Open, writer: Writer) -> None:
    bodies = {os.urandom(size) for size in (1, 65_536, 3_000_000)}
    for body in bodies:
        writer.write({}, body)
    directory = spool()
    found = set()
    while (claim := directory.next()) is not None:
        found.add(claim.body)
        claim.finish()
    assert found == bodies


def test_job_given_back_waits_for_its_delay(spool: Open, writer: Writer, clock: FakeClock) -> None:
    path = writer.write({"k": "v"})
    directory = spool()
    claimed(directory).give_back(60)
    assert directory.next() is None
    clock.advance(59.9)
    assert directory.next() is None
    assert os.stat(path).st_mtime > clock.now(), "other spoolers must wait, too"
    clock.advance(0.2)
    assert work_off(directory) == [{b"k": b"v"}]


def test_claim_is_given_back_after_an_exception(spool: Open, writer: Writer) -> None:
    writer.write({"k": "v"})
    directory = spool()
    with pytest.raises(ZeroDivisionError), claimed(directory):
        raise ZeroDivisionError
    assert work_off(directory) == [{b"k": b"v"}]


def test_attempts_are_stored_with_the_file(spool: Open, writer: Writer, clock: FakeClock) -> None:
    path = writer.write({"k": "v"})
    for number in (1, 2, 3):
        claim = claimed(spool())
        assert claim.attempts == number - 1
        assert claim.begin() == number
        claim.give_back()
    os.rename(path, f"{writer.path}/{PREFIX}moved")
    assert claimed(spool()).attempts == 3


def test_attempts_are_files_without_extended_attributes(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    directory, file = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "job", os.O_RDWR)
    attempts = Attempts(directory, attributes=False)
    for _ in range(2):
        assert attempts.read(file, "job") == 0
        for number in range(1, 12):
            assert attempts.count(file, "job") == number
            assert Attempts(directory, attributes=False).read(file, "job") == number
        attempts.forget("job")
        assert os.listdir(tmp_path / FOLDER) == []
        assert ATTRIBUTE not in os.listxattr(file)
    os.close(file)
    os.close(directory)


def test_missing_extended_attributes_are_detected(
    spool: Open, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "getxattr", refuse)
    monkeypatch.setattr(os, "setxattr", refuse)
    writer.write({"k": "v"})
    directory = spool()
    claim = claimed(directory)
    assert (claim.begin(), claim.begin(), claim.attempts) == (1, 2, 2)
    claim.finish()
    assert files(writer.path) == []


def test_declined_job_is_not_claimed_again_unless_changed(
    spool: Open, writer: Writer, clock: FakeClock
) -> None:
    path = writer.write({"k": "v"})
    one, other = spool(), spool()
    claimed(one).decline()
    for _ in range(3):
        clock.advance(100)
        assert one.next() is None
    claim = claimed(other)
    claim.give_back()
    os.utime(path, (5, 5))
    assert work_off(one) == [{b"k": b"v"}], "it has changed"


def test_job_set_aside_is_kept_with_the_reason(spool: Open, writer: Writer) -> None:
    writer.write({"k": "v"}, priority=1)
    claim = claimed(spool(ordered=True))
    claim.begin()
    claim.set_aside("it failed")
    assert files(writer.path) == [f".qw-dead/{claim.name}", f".qw-dead/{claim.name}.json"]
    note = json.loads(Path(writer.path, ".qw-dead", f"{claim.name}.json").read_text())
    assert (note["path"], note["reason"], note["attempts"]) == (f"1/{claim.name}", "it failed", 1)
    directory = spool(ordered=True)
    assert directory.next() is None
    os.rename(f"{writer.path}/.qw-dead/{claim.name}", f"{writer.path}/{claim.name}")
    assert work_off(directory) == [{b"k": b"v"}]


def test_job_removed_while_it_runs(spool: Open, writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    path = writer.write({"k": "v"})
    claim = claimed(spool())
    os.unlink(path)
    assert not claim.finish()
    assert "was removed while its job ran" in caplog.text


def test_job_moved_while_it_runs(
    spool: Open, writer: Writer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    path = writer.write({"k": "v"})
    directory = spool()
    claim = claimed(directory)
    os.rename(path, f"{writer.path}/{PREFIX}moved")
    assert directory.next() is None, "the lock moves with the file"
    assert not claim.finish()
    assert "moved, and will run again" in caplog.text
    clock.advance(1)
    directory.rescan()
    assert work_off(directory) == [{b"k": b"v"}]


@pytest.mark.parametrize(
    "sample", [one for one in samples("malformed") if not one.entry["uwsgi_executed"]], ids=lambda one: one.id
)
def test_malformed_file_is_set_aside_after_a_grace_period(
    sample: Sample, spool: Open, writer: Writer, clock: FakeClock
) -> None:
    name = f"{PREFIX}bad"
    Path(writer.path, name).write_bytes(sample.image)
    writer.write({"k": "v"})
    directory = spool(grace=60)
    assert work_off(directory) == [{b"k": b"v"}]
    clock.advance(50)
    assert directory.next() is None
    assert files(writer.path) == [name]
    clock.advance(20)
    assert directory.next() is None
    assert files(writer.path) == [f".qw-dead/{name}", f".qw-dead/{name}.json"]
    assert Path(writer.path, ".qw-dead", name).read_bytes() == sample.image
    assert "byte" in dead_reasons(writer)[0]


def test_file_completed_late_is_run(spool: Open, writer: Writer, clock: FakeClock) -> None:
    path = Path(writer.write({"k": "v"}))
    image = path.read_bytes()
    path.write_bytes(image[:5])
    directory = spool()
    assert directory.next() is None
    path.write_bytes(image)
    assert work_off(directory) == [{b"k": b"v"}]


def test_only_plain_files_are_run(spool: Open, writer: Writer, tmp_path: Path) -> None:
    place = Path(writer.path)
    outside = Path(writer.write({"k": "v"})).rename(tmp_path / "outside")
    (place / f"{PREFIX}link").symlink_to(outside)
    (place / f"{PREFIX}directory").mkdir()
    os.mkfifo(place / f"{PREFIX}pipe")
    (place / "other").write_bytes(outside.read_bytes())
    directory = spool()
    assert directory.next() is None
    os.replace(outside, place / f"{PREFIX}file")
    assert work_off(directory) == [{b"k": b"v"}]


def test_files_of_other_users_are_not_run(
    spool: Open, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    writer.write({"k": "v"})
    assert spool(owners={os.getuid() + 1}).next() is None
    assert "may not run code here" in caplog.text
    assert work_off(spool()) == [{b"k": b"v"}]


def test_unreadable_file_is_run_once_it_is_readable(spool: Open, writer: Writer) -> None:
    path = writer.write({"k": "v"})
    os.chmod(path, 0)
    if os.access(path, os.R_OK):
        pytest.skip("nothing is unreadable for root: run it as another user")
    directory = spool()
    assert directory.next() is None
    os.chmod(path, 0o600)
    assert work_off(directory) == [{b"k": b"v"}]
