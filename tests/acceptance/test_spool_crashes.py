"""Processes killed at each crash point of writing and finishing a job, and many processes on one
directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.administration.admin import SpoolAdmin
from qworker.spooler.files.packet import DEAD, PREFIX, TEMPORARY
from qworker.spooler.files.writing import Writer, sweep
from qworker.spooler.watching.directory import SpoolDirectory
from tests.acceptance.harness import REPOSITORY
from tests.support.spools import beside_or_far, files
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

WRITE = """
import sys
from qworker.spooler import NewJob, Sync, Writer
writer = Writer(sys.argv[1], sync=Sync.DIRECTORY)
print(writer.write({"k": "v"}, b"body", at=5), flush=True)
"""
WORK = """
import sys
from qworker.spooler import SpoolDirectory
claim = SpoolDirectory(sys.argv[1]).next()
claim.begin()
if sys.argv[2] == "finish":
    claim.finish()
elif sys.argv[2] == "give back":
    claim.give_back()
else:
    claim.set_aside("it failed")
"""
WORK_ALL = """
import os, sys
from qworker.spooler import SpoolDirectory
directory = SpoolDirectory(sys.argv[1], ordered=True)
print("ready", flush=True)
while True:
    claim = directory.next()
    if claim is None:
        directory.wait(60)
    elif b"stop" in claim.pairs:
        break
    else:
        os.write(1, claim.pairs[b"n"] + b"\\n")
        claim.finish()
"""
MOVE = """
import sys
from qworker.spooler import SpoolAdmin
admin = SpoolAdmin(sys.argv[1])
admin.move(next(admin.waiting()).path, SpoolAdmin(sys.argv[2]))
"""
RETRY = """
import sys
from qworker.spooler import SpoolAdmin
admin = SpoolAdmin(sys.argv[1])
admin.retry(next(admin.set_aside()).name)
"""
BEFORE = ["spool file opened", "spool file written", "spool file ready"]
HELD = ["spool file claimed", "spool job begun"]
CALL = re.compile(r"""crash_point\("([^"]+)"\)""")
POINTS = {
    name
    for path in (REPOSITORY / "qworker" / "spooler").rglob("*.py")
    for name in CALL.findall(path.read_text(encoding="utf-8"))
}
ENDS = [
    *((point, "finish", True) for point in HELD),
    ("spool file removed", "finish", False),
    ("spool file given back", "give back", True),
    ("spool note written", "set aside", True),
]
"""The crash point, what the process was about to do, and whether the job runs again."""
COPIED = ["spool copy written", "spool copy named"]


def run(tmp_path: Path, point: str, script: str, *arguments: str) -> str:
    """Run *script* on the spool directory until it dies at *point*; returns its output."""
    hit = tmp_path / "hit"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "spool"), *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "QWORKER_CRASH_AT": f"{point}@{hit}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hit.exists(), f"{point} was never reached"
    assert ended.returncode == -signal.SIGKILL
    return ended.stdout


def test_every_crash_point_is_tested() -> None:
    ends = {point for point, _, _ in ENDS}
    assert {*BEFORE, "spool file named", *ends, *COPIED, "spool job put back"} == POINTS


@pytest.mark.parametrize("point", [*BEFORE, "spool file named"])
def test_writer_dies_at_point(tmp_path: Path, point: str) -> None:
    assert run(tmp_path, point, WRITE) == "", "nobody was told that it is there"
    (name,) = files(tmp_path / "spool")
    assert name.startswith(TEMPORARY if point in BEFORE else PREFIX)
    directory = SpoolDirectory(tmp_path / "spool")
    claim = directory.next()
    if point in BEFORE:
        assert claim is None
        assert sweep(directory.path, older_than=-60) == 1
    else:
        assert claim is not None
        assert (claim.pairs, claim.body) == ({b"k": b"v"}, b"body")
        claim.finish()
    assert files(tmp_path / "spool") == []
    directory.close()


@pytest.mark.parametrize(("point", "end", "again"), ENDS)
def test_job_owner_dies_at_point(tmp_path: Path, point: str, end: str, again: bool) -> None:
    writer = Writer(tmp_path / "spool")
    writer.write({"k": "v"})
    run(tmp_path, point, WORK, end)
    directory = SpoolDirectory(writer.path)
    if again:
        claim = until(directory.next)
        assert claim.attempts == (0 if point == "spool file claimed" else 1), "a crash counts"
        claim.set_aside("enough")
        note = json.loads(Path(writer.path, DEAD, f"{claim.name}.json").read_text())
        assert note["reason"] == "enough"
    else:
        assert directory.next() is None
        assert files(writer.path) == []
    directory.close()


@pytest.mark.parametrize("point", COPIED)
def test_move_to_another_file_system_dies_at_point(tmp_path: Path, point: str) -> None:
    path = Path(Writer(tmp_path / "spool").write({"k": "v"}, b"body"))
    image = path.read_bytes()
    with beside_or_far("far", tmp_path) as far:
        run(tmp_path, point, MOVE, str(far))
        assert path.read_bytes() == image, "it is here until it is done"
        (copy,) = files(far)
        assert copy.startswith(TEMPORARY if point == "spool copy written" else path.name)
        assert (far / copy).read_bytes() == image


def test_retry_dies_before_the_note_is_removed(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "spool")
    writer.write({"k": "v"})
    directory = SpoolDirectory(writer.path)
    claim = directory.next()
    assert claim is not None
    claim.begin()
    claim.set_aside("it failed")
    run(tmp_path, "spool job put back", RETRY)
    claim = until(directory.next)
    assert claim.attempts == 0
    claim.finish()
    directory.close()
    with closing(SpoolAdmin(writer.path)) as admin:
        assert list(admin.set_aside()) == [], "the note that is left is no job"


def test_processes_and_threads_run_each_job_once(tmp_path: Path) -> None:
    """Three processes, two threads of a fourth, and two writing threads."""
    place = tmp_path / "spool"
    writer = Writer(place)
    command = [sys.executable, "-c", WORK_ALL, str(place)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    outputs = [tmp_path / f"out{number}" for number in range(3)]
    workers = []
    for output in outputs:
        with output.open("wb") as file:
            workers.append(subprocess.Popen(command, stdout=file, env=environment))
    until(lambda: all(output.read_bytes().startswith(b"ready") for output in outputs))
    done: list[bytes] = []
    enough = threading.Event()

    def write(first: int) -> None:
        for number in range(first, 1000, 2):
            writer.write({"n": number}, priority=number % 3 or "")

    def work() -> None:
        directory = SpoolDirectory(place, ordered=True)
        while not enough.is_set():
            if (claim := directory.next()) is None:
                directory.wait(0.05)
            else:
                done.append(claim.pairs[b"n"])
                claim.finish()
        directory.close()

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    threads += [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()

    def ran() -> Counter[bytes]:
        return Counter(done) + Counter(
            line for output in outputs for line in output.read_bytes().split(b"\n")[1:] if line
        )

    until(lambda: sum(ran().values()) >= 1000, say=lambda: f"for {len(ran())} of 1000 jobs")
    enough.set()
    for thread in threads:
        thread.join()
    for _ in workers:
        writer.write({"stop": 1})
    for worker in workers:
        until(lambda worker=worker: worker.poll() is not None)
    assert ran() == Counter(b"%d" % number for number in range(1000))
    assert [name for name in files(place) if "/" in name] == []


def test_job_of_a_killed_process_is_released_at_once(tmp_path: Path) -> None:
    """The lock ends with the process, and others are notified."""
    writer = Writer(tmp_path / "spool")
    writer.write({"k": "v"})
    hold = WORK.replace("claim.begin()", "claim.begin(); print('held', flush=True); sys.stdin.read()")
    with subprocess.Popen(
        [sys.executable, "-c", hold, writer.path, "finish"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        directory = SpoolDirectory(writer.path, frequency=3600)
        assert directory.next() is None
        holder.kill()
    claim = until(directory.next)
    assert claim.attempts == 1
    claim.finish()
    directory.close()
