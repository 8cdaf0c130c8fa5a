"""spool rm, retry and move: their effects, and that running jobs are not touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.files.claiming import ClaimedFile
from qworker.spooler.files.packet import DEAD
from qworker.spooler.files.writing import Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import beside_or_far, files


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


@pytest.fixture
def spooler(spool: Path) -> Iterator[SpoolDirectory]:
    with closing(SpoolDirectory(spool, ordered=True)) as directory:
        yield directory


def add(spool: Path, **options: object) -> str:
    writer = Writer(spool)
    return os.path.relpath(writer.write({"k": "v"}, **options), writer.path)  # type: ignore[arg-type]


def claimed(spooler: SpoolDirectory) -> ClaimedFile:
    spooler.rescan()
    claim = spooler.next()
    assert claim is not None
    return claim


def set_aside(spool: Path, spooler: SpoolDirectory, attempts: int = 2, **options: object) -> str:
    name = add(spool, **options)
    claim = claimed(spooler)
    for _ in range(attempts):
        claim.begin()
    claim.set_aside("it failed")
    return name


def attempts_of(run, spool: Path, name: str) -> object:
    return json.loads(run("spool", "show", str(spool), name, "--json").stdout)["attempts"]


def test_jobs_are_removed(run, spool):
    names = [add(spool), add(spool, priority=1)]
    kept = add(spool)
    result = run("spool", "rm", str(spool), *names, names[0])
    assert (result.exit_code, result.stdout) == (0, "Removed: 2 jobs.\n")
    assert files(spool) == [kept]


def test_running_job_is_not_touched(run, spool, spooler):
    name = add(spool)
    claim = claimed(spooler)
    claim.begin()
    before = os.stat(spool / name)
    waiting = add(spool)
    for command in (("rm",), ("retry",), ("move", "7")):
        result = run("spool", command[0], str(spool), name, *command[1:])
        assert result.exit_code == 1
        assert "is running" in result.stderr
        assert result.stdout.endswith(": 0 jobs.\n")
        assert os.stat(spool / name) == before
    assert run("spool", "rm", str(spool), name, waiting).stdout == "Removed: 1 job.\n"
    assert claim.attempts == 1
    assert claim.finish()


def test_missing_job_is_reported_and_the_others_are_removed(run, spool):
    name = add(spool)
    result = run("spool", "rm", str(spool), f"{name}9", name)
    assert (result.exit_code, result.stdout) == (1, "Removed: 1 job.\n")
    assert result.stderr.startswith("Error: there is no job")
    kept = add(spool)
    assert run("spool", "rm", str(spool), kept, "../x").exit_code == 1
    assert files(spool) == [kept]


def test_dead_jobs_are_removed_only_with_dead(run, spool, spooler):
    name = set_aside(spool, spooler)
    refused = run("spool", "rm", str(spool), name)
    assert refused.exit_code == 1
    assert "--dead" in refused.stderr
    assert files(spool) == [f"{DEAD}/{name}", f"{DEAD}/{name}.json"]
    assert run("spool", "rm", str(spool), name, "--dead").stdout == "Removed: 1 job.\n"
    assert files(spool) == []
    assert "was set aside" in run("spool", "rm", str(spool), name, "--dead").stderr


def test_dead_does_not_remove_waiting_jobs(run, spool):
    name = add(spool)
    assert run("spool", "rm", str(spool), name, "--dead").exit_code == 1
    assert files(spool) == [name]


def test_dead_job_is_put_back(run, spool, spooler):
    name = set_aside(spool, spooler, priority=5)
    os.utime(spool / DEAD / name.rpartition("/")[2], (0, time.time() + 3600))
    os.rmdir(spool / "5")
    result = run("spool", "retry", str(spool), name)
    assert (result.exit_code, result.stdout) == (0, "Put back: 1 job.\n")
    assert files(spool) == [name]
    assert attempts_of(run, spool, name) == 0
    claim = claimed(spooler)
    assert claim.path == name
    assert claim.begin() == 1
    claim.finish()


def test_all_dead_jobs_are_put_back(run, spool, spooler):
    names = {set_aside(spool, spooler), set_aside(spool, spooler, priority=1)}
    assert run("spool", "retry", str(spool), "--all").stdout == "Put back: 2 jobs.\n"
    assert set(files(spool)) == names
    assert run("spool", "retry", str(spool), "--all").stdout == "Put back: 0 jobs.\n"
    assert run("spool", "retry", str(spool)).exit_code == 2


def test_retry_makes_a_delayed_job_due(run, spool, spooler):
    name = add(spool)
    claim = claimed(spooler)
    claim.begin()
    claim.give_back(3600)
    assert run("spool", "retry", str(spool), name).exit_code == 0
    assert attempts_of(run, spool, name) == 0
    assert claimed(spooler).path == name


def test_retry_does_not_replace_another_file(run, spool, spooler):
    name = set_aside(spool, spooler)
    (spool / name).mkdir()
    assert run("spool", "retry", str(spool), name).exit_code == 1
    assert f"{DEAD}/{name}" in files(spool)
    os.rmdir(spool / name)
    note = json.loads((spool / DEAD / f"{name}.json").read_text())
    (spool / DEAD / f"{name}.json").write_text(json.dumps({**note, "path": f"../{name}"}))
    assert run("spool", "retry", str(spool), name).exit_code == 0
    assert files(spool) == [name]


def test_move_changes_the_priority(run, spool):
    name = add(spool, at=time.time() + 3600)
    due = os.stat(spool / name).st_mtime
    assert run("spool", "move", str(spool), name, "10").stdout == "Moved: 1 job.\n"
    assert files(spool) == [f"10/{name}"]
    assert os.stat(spool / "10" / name).st_mtime == due
    again = run("spool", "move", str(spool), f"10/{name}", "10")
    assert again.exit_code == 1
    assert "already" in again.stderr
    assert run("spool", "move", str(spool), f"10/{name}", f"{spool}/.").exit_code == 0
    assert files(spool) == [name]


@pytest.fixture(params=["beside", "on another file system"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with beside_or_far(request.param, tmp_path) as path:
        yield path


def test_move_to_another_directory(run, spool, spooler, elsewhere):
    name = add(spool, priority=3, body=b"b" * 1_000_000)
    claim = claimed(spooler)
    claim.begin()
    claim.give_back(3600)
    (spool / name).chmod(0o640)
    image, before = (spool / name).read_bytes(), os.stat(spool / name)
    result = run("spool", "move", str(spool), name, str(elsewhere))
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Moved: 1 job.\n", "")
    assert files(spool) == []
    assert [path for path in files(elsewhere) if ".qw-attempts" not in path] == [name]
    after = os.stat(elsewhere / name)
    assert (elsewhere / name).read_bytes() == image
    assert (after.st_mtime_ns, after.st_mode, after.st_uid) == (
        before.st_mtime_ns,
        before.st_mode,
        before.st_uid,
    )
    assert attempts_of(run, elsewhere, name) == 1


def test_job_that_cannot_be_moved_stays(run, spool, elsewhere):
    name = add(spool)
    (elsewhere / name).mkdir()
    result = run("spool", "move", str(spool), name, str(elsewhere))
    assert result.exit_code == 1
    assert "already" in result.stderr
    assert run("spool", "move", str(spool), name, str(elsewhere / "gone")).exit_code == 1
    assert files(spool) == [name]
    assert files(elsewhere) == []
