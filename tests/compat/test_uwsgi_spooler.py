"""Real uWSGI and qworker on one spool directory: each runs the other's jobs, and both run at the same
time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qworker.spooler.files.locks import DescriptionLock, FileLock, Locked, RecordLock
from qworker.spooler.files.packet import PREFIX
from qworker.spooler.files.writing import NewJob, Writer
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spools import files
from tests.support.uwsgi_files import MANIFEST, samples
from tests.support.waiting import until

pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

CONSUMER = """
    import os, uwsgi

    def spooler(pairs):
        name = pairs["spooler_task_name"]
        line = b"%s %s %d\\n" % (pairs.get(b"id", b"?"), name, len(pairs.get("body", b"")))
        log = os.open("{log}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, line)
        os.close(log)
        {body}
        return uwsgi.SPOOL_OK

    uwsgi.spooler = spooler
"""
PRODUCER = """
    import uwsgi

    {body}
    print("produced", flush=True)
"""


def eventually(condition: Callable[[], object], what: str) -> None:
    until(condition, say=lambda: f"for {what}")


class Uwsgi:
    """uWSGI processes on one spool directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path / "spool"
        self.place.mkdir()
        self.log = path / "runs"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, *options: str) -> subprocess.Popen[bytes]:
        file = self.path / f"script{len(self._started)}.py"
        file.write_text(textwrap.dedent(script))
        code = "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"
        with (self.path / f"log{len(self._started)}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, "--master", "--need-app=0", *options, f"--shared-import={file}"],
                cwd=self.path,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def consume(self, *options: str, body: str = "pass") -> subprocess.Popen[bytes]:
        """Run jobs; *body* is executed in each."""
        script = CONSUMER.format(log=self.log, body=body)
        return self.start(script, f"--spooler={self.place}", "--spooler-frequency=1", *options)

    def produce(self, body: str) -> None:
        """Let uWSGI write jobs, then end it."""
        process = self.start(PRODUCER.format(body=body), f"--spooler-external={self.place}", "--workers=1")
        output = self.path / f"log{len(self._started) - 1}"
        eventually(lambda: b"produced" in output.read_bytes(), "uWSGI to write its jobs")
        self.end(process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def close(self) -> None:
        for process in self._started:
            self.end(process)

    def ran(self) -> list[str]:
        """The ids of the jobs that uWSGI ran, in order."""
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []


@pytest.fixture
def uwsgi(tmp_path: Path) -> Iterator[Uwsgi]:
    uwsgi = Uwsgi(tmp_path)
    yield uwsgi
    uwsgi.close()


@contextmanager
def opened(place: Path, **options: object) -> Iterator[SpoolDirectory]:
    directory = SpoolDirectory(place, **options)  # type: ignore[arg-type]
    try:
        yield directory
    finally:
        directory.close()


def test_jobs_written_by_uwsgi_are_claimed(uwsgi: Uwsgi) -> None:
    uwsgi.produce(
        "[uwsgi.spool({b'id': b'%d' % n, b'body': b'x' * n * 1000}) for n in range(50)]"
        "; uwsgi.spool({b'id': b'later', b'at': b'1900000000'})"
        "; uwsgi.spool({b'id': b'p', b'priority': b'3'})"
    )
    found = {}
    with opened(uwsgi.place, ordered=True) as directory:
        while (claim := directory.next()) is not None:
            found[claim.pairs[b"id"]] = len(claim.body)
            claim.finish()
    assert found == {b"%d" % n: n * 1000 for n in range(50)} | {b"p": 0}
    assert len(files(uwsgi.place)) == 1, "what is due in some years"


def test_uwsgi_runs_jobs_that_we_write(uwsgi: Uwsgi) -> None:
    writer = Writer(uwsgi.place)
    soon = time.time() + 2
    writer.write_many(NewJob({"id": n}, b"x" * n * 1000) for n in range(50))
    writer.write({"id": "soon"}, at=soon)
    writer.write({"id": "first"}, priority=1)
    writer.write({"id": "never"}, at=1_900_000_000)
    uwsgi.consume("--spooler-ordered")
    eventually(lambda: len(uwsgi.ran()) == 52, "uWSGI to run what is due")
    assert time.time() >= soon
    assert uwsgi.ran() == ["first", *map(str, range(50)), "soon"]
    sizes = [int(line.split()[2]) for line in uwsgi.log.read_text().splitlines()]
    assert sizes[1:51] == [n * 1000 for n in range(50)]
    eventually(lambda: len(files(uwsgi.place)) == 1, "uWSGI to remove what it has run")


def test_both_run_a_tree_in_the_same_order(uwsgi: Uwsgi) -> None:
    for number, file in enumerate(MANIFEST["order"]["files"]):
        path = uwsgi.place / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x11\x07\0\0\x02\0id\x01\0" + bytes((65 + number,)))
    shutil.copytree(uwsgi.place, uwsgi.path / "copy")
    ours = []
    with opened(uwsgi.path / "copy", ordered=True) as directory:
        while (claim := directory.next()) is not None:
            ours.append(claim.pairs[b"id"].decode())
            claim.finish()
    uwsgi.consume("--spooler-ordered")
    eventually(lambda: len(uwsgi.ran()) == len(ours), "uWSGI to run them")
    assert uwsgi.ran() == ours


def test_job_running_in_uwsgi_is_not_claimed(uwsgi: Uwsgi) -> None:
    go = uwsgi.path / "go"
    Writer(uwsgi.place).write({"id": 1})
    uwsgi.consume(body=f"\n        while not os.path.exists('{go}'): __import__('time').sleep(0.01)")
    eventually(lambda: uwsgi.ran() == ["1"], "uWSGI to run it")
    (name,) = os.listdir(uwsgi.place)
    descriptor = os.open(uwsgi.place, os.O_RDONLY)
    locks: list[FileLock] = [DescriptionLock(), RecordLock()]
    for lock in locks:
        with pytest.raises(Locked):
            lock.acquire(name, descriptor)
        assert lock.is_held(name, descriptor)
    os.close(descriptor)
    with opened(uwsgi.place) as directory:
        assert directory.next() is None
        go.touch()
        eventually(lambda: not os.listdir(uwsgi.place), "uWSGI to end it")
        assert directory.next() is None


@pytest.mark.parametrize("lock", [DescriptionLock, RecordLock])
def test_job_running_here_is_not_run_by_uwsgi(uwsgi: Uwsgi, lock: Callable[[], FileLock]) -> None:
    writer = Writer(uwsgi.place)
    writer.write({"id": "ours"})
    with opened(uwsgi.place, lock=lock()) as directory:
        claim = directory.next()
        assert claim is not None
        uwsgi.consume()
        for mark in ("one", "two", "three"):  # three scans of uWSGI's
            writer.write({"id": mark})
            eventually(lambda mark=mark: mark in uwsgi.ran(), "uWSGI to run another")
        claim.finish()
    assert uwsgi.ran() == ["one", "two", "three"]


def test_delayed_retry_is_respected_by_uwsgi(uwsgi: Uwsgi) -> None:
    writer = Writer(uwsgi.place)
    writer.write({"id": "again"})
    with opened(uwsgi.place) as directory:
        claim = directory.next()
        assert claim is not None
        claim.begin()
        claim.give_back(3)
        until_then = time.time() + 2  # uWSGI looks at whole seconds
        uwsgi.consume()
        eventually(lambda: "again" in uwsgi.ran(), "uWSGI to run it")
    assert time.time() >= until_then


def test_concurrent_spoolers_run_each_job_once(uwsgi: Uwsgi) -> None:
    """Two of ours, two of uWSGI's, and both write."""
    ours: Counter[str] = Counter()
    writer = Writer(uwsgi.place)
    writer.write({"id": "first"})
    consumer = uwsgi.consume("--spooler-processes=2", "--spooler-quiet")
    eventually(lambda: uwsgi.ran() == ["first"], "uWSGI to be there")
    uwsgi.start(
        PRODUCER.format(body="for n in range(500): uwsgi.spool({b'id': b'u%d' % n})"),
        f"--spooler-external={uwsgi.place}",
        "--workers=1",
    )
    writer.write_many(NewJob({"id": f"q{n}"}) for n in range(500))
    expected = {"first"} | {f"q{n}" for n in range(500)} | {f"u{n}" for n in range(500)}
    with opened(uwsgi.place) as one, opened(uwsgi.place) as two:

        def work() -> bool:
            for directory in (one, two):
                if (claim := directory.next()) is not None:
                    ours[claim.pairs[b"id"].decode()] += 1
                    time.sleep(0.002)  # so that uWSGI, which looks once a second, finds something, too
                    claim.finish()
            return set(ours) | set(uwsgi.ran()) >= expected

        while not work():
            one.wait(0.01)
    eventually(lambda: not files(uwsgi.place), "the last file to be removed")
    assert consumer.poll() is None
    assert ours
    assert len(uwsgi.ran()) > 1  # more than the first
    assert ours + Counter(uwsgi.ran()) == Counter(expected)


def test_uwsgi_runs_copies_of_the_sample_files(uwsgi: Uwsgi) -> None:
    """Proves that the samples of other tests are valid files for this uWSGI."""
    expected = 0
    for sample in samples("valid"):
        if sample.entry["uwsgi_executes"] == "yes" and not sample.entry["priority"]:
            shutil.copy(sample.path, uwsgi.place / f"{PREFIX}{sample.id}")
            expected += 1
    uwsgi.consume()
    eventually(lambda: len(uwsgi.ran()) == expected, "uWSGI to run them")
