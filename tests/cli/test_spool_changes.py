"""spool rm, retry and move: what is changed, and what is left alone because somebody runs it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.files.claiming import Claim
from qworker.spooler.files.packet import DEAD
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import beside_or_far, files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture
def spooler(place: Path) -> Iterator[SpoolDirectory]:
    with closing(SpoolDirectory(place, ordered=True)) as directory:
        yield directory


def add(place: Path, **options: object) -> str:
    writer = Writer(place)
    return os.path.relpath(writer.write({"k": "v"}, **options), writer.path)  # type: ignore[arg-type]


def claimed(spooler: SpoolDirectory) -> Claim:
    spooler.rescan()
    claim = spooler.next()
    assert claim is not None
    return claim


def set_aside(place: Path, spooler: SpoolDirectory, attempts: int = 2, **options: object) -> str:
    name = add(place, **options)
    claim = claimed(spooler)
    for _ in range(attempts):
        claim.begin()
    claim.set_aside("it failed")
    return name


def attempts_of(run, place: Path, name: str) -> object:
    return json.loads(run("spool", "show", str(place), name, "--json").stdout)["attempts"]


def test_jobs_are_removed(run, place):
    names = [add(place), add(place, priority=1)]
    kept = add(place)
    result = run("spool", "rm", str(place), *names, names[0])
    assert (result.exit_code, result.stdout) == (0, "Removed: 2 jobs.\n")
    assert files(place) == [kept]


def test_one_that_runs_is_not_touched(run, place, spooler):
    name = add(place)
    claim = claimed(spooler)
    claim.begin()
    before = os.stat(place / name)
    waiting = add(place)
    for command in (("rm",), ("retry",), ("move", "7")):
        result = run("spool", command[0], str(place), name, *command[1:])
        assert result.exit_code == 1
        assert "is being run" in result.stderr
        assert result.stdout.endswith(": 0 jobs.\n")
        assert os.stat(place / name) == before
    assert run("spool", "rm", str(place), name, waiting).stdout == "Removed: 1 job.\n"
    assert claim.attempts == 1
    assert claim.finish()


def test_what_is_not_there_is_told_and_the_rest_is_done(run, place):
    name = add(place)
    result = run("spool", "rm", str(place), f"{name}9", name)
    assert (result.exit_code, result.stdout) == (1, "Removed: 1 job.\n")
    assert result.stderr.startswith("Error: there is no job")
    kept = add(place)
    assert run("spool", "rm", str(place), kept, "../x").exit_code == 1
    assert files(place) == [kept]


def test_dead_ones_are_removed_when_that_is_said(run, place, spooler):
    name = set_aside(place, spooler)
    refused = run("spool", "rm", str(place), name)
    assert refused.exit_code == 1
    assert "--dead" in refused.stderr
    assert files(place) == [f"{DEAD}/{name}", f"{DEAD}/{name}.json"]
    assert run("spool", "rm", str(place), name, "--dead").stdout == "Removed: 1 job.\n"
    assert files(place) == []
    assert "was set aside" in run("spool", "rm", str(place), name, "--dead").stderr


def test_dead_does_not_mean_one_that_waits(run, place):
    name = add(place)
    assert run("spool", "rm", str(place), name, "--dead").exit_code == 1
    assert files(place) == [name]


def test_one_that_was_set_aside_comes_back(run, place, spooler):
    name = set_aside(place, spooler, priority=5)
    os.utime(place / DEAD / name.rpartition("/")[2], (0, time.time() + 3600))
    os.rmdir(place / "5")
    result = run("spool", "retry", str(place), name)
    assert (result.exit_code, result.stdout) == (0, "Put back: 1 job.\n")
    assert files(place) == [name]
    assert attempts_of(run, place, name) == 0
    claim = claimed(spooler)
    assert claim.path == name
    assert claim.begin() == 1
    claim.finish()


def test_all_come_back(run, place, spooler):
    names = {set_aside(place, spooler), set_aside(place, spooler, priority=1)}
    assert run("spool", "retry", str(place), "--all").stdout == "Put back: 2 jobs.\n"
    assert set(files(place)) == names
    assert run("spool", "retry", str(place), "--all").stdout == "Put back: 0 jobs.\n"
    assert run("spool", "retry", str(place)).exit_code == 2


def test_one_that_waits_is_due_now(run, place, spooler):
    name = add(place)
    claim = claimed(spooler)
    claim.begin()
    claim.give_back(3600)
    assert run("spool", "retry", str(place), name).exit_code == 0
    assert attempts_of(run, place, name) == 0
    assert claimed(spooler).path == name


def test_no_job_is_replaced_by_one_that_comes_back(run, place, spooler):
    name = set_aside(place, spooler)
    (place / name).mkdir()
    assert run("spool", "retry", str(place), name).exit_code == 1
    assert f"{DEAD}/{name}" in files(place)
    os.rmdir(place / name)
    note = json.loads((place / DEAD / f"{name}.json").read_text())
    (place / DEAD / f"{name}.json").write_text(json.dumps({**note, "path": f"../{name}"}))
    assert run("spool", "retry", str(place), name).exit_code == 0
    assert files(place) == [name]


def test_to_another_priority_and_to_none(run, place):
    name = add(place, at=time.time() + 3600)
    due = os.stat(place / name).st_mtime
    assert run("spool", "move", str(place), name, "10").stdout == "Moved: 1 job.\n"
    assert files(place) == [f"10/{name}"]
    assert os.stat(place / "10" / name).st_mtime == due
    again = run("spool", "move", str(place), f"10/{name}", "10")
    assert again.exit_code == 1
    assert "already" in again.stderr
    assert run("spool", "move", str(place), f"10/{name}", f"{place}/.").exit_code == 0
    assert files(place) == [name]


@pytest.fixture(params=["beside", "on another file system"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with beside_or_far(request.param, tmp_path) as path:
        yield path


def test_to_another_directory(run, place, spooler, elsewhere):
    name = add(place, priority=3, body=b"b" * 1_000_000)
    claim = claimed(spooler)
    claim.begin()
    claim.give_back(3600)
    (place / name).chmod(0o640)
    image, before = (place / name).read_bytes(), os.stat(place / name)
    result = run("spool", "move", str(place), name, str(elsewhere))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Moved: 1 job.\n", "")
    assert files(place) == []
    assert [path for path in files(elsewhere) if ".qw-attempts" not in path] == [name]
    after = os.stat(elsewhere / name)
    assert (elsewhere / name).read_bytes() == image
    assert (after.st_mtime_ns, after.st_mode, after.st_uid) == (
        before.st_mtime_ns,
        before.st_mode,
        before.st_uid,
    )
    assert attempts_of(run, elsewhere, name) == 1


def test_what_cannot_arrive_stays(run, place, elsewhere):
    name = add(place)
    (elsewhere / name).mkdir()
    result = run("spool", "move", str(place), name, str(elsewhere))
    assert result.exit_code == 1
    assert "already" in result.stderr
    assert run("spool", "move", str(place), name, str(elsewhere / "gone")).exit_code == 1
    assert files(place) == [name]
    assert files(elsewhere) == []
