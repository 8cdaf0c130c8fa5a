"""Exhausted resources: disk, files, memory, CPU, and output that is not read."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.errors import QWorkerError
from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a small file system needs root: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Write a file that fills the disk completely."""
    path = place / "filler"
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def test_worker_survives_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    """F-80: callers get a clear error; the worker waits, and continues when there is space again."""
    site = Site(tmp_path, small_disk / "broker.db")
    try:
        worker = site.start()
        before = worker.wait_pool()
        go = site.path / "go"
        running = [site.send("until_file", str(go)) for _ in range(2)]
        site.started(*running)
        waiting = [site.send("work", number) for number in range(10)]
        filler = fill(small_disk)
        refusal = ""
        for number in range(200):
            try:
                site.send("work", number, 0.0)
            except QWorkerError as error:
                refusal = str(error)
                break
        assert "full" in refusal
        go.touch()
        site.ended(*running)
        site.until(lambda: "does not answer" in worker.log or not site.waiting(), "the worker to notice")
        filler.unlink()
        site.finished(*running, *waiting)
        site.ended(site.send("work", 1))
        site.drained()
        assert sorted(worker.pool()) == sorted(before), "no process ended"
        worker.stop()
        check(site)
        assert "Traceback" not in worker.log
        assert len(site.records(kind=STARTED)) == len(site.sent)
    finally:
        site.close()


def test_worker_started_on_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    site = Site(tmp_path, small_disk / "broker.db")
    try:
        filler = fill(small_disk)
        worker = site.start(ready=False)
        site.until(lambda: "is full" in worker.log, "the complaint")
        assert "Traceback" not in worker.log
        if "Error: " in worker.log:  # it gave up; otherwise it retries
            assert worker.wait() == 1
        filler.unlink()
        if not worker.alive:
            worker = site.start(name="two")
        site.finished(site.send("work", 1))
        worker.stop()
        check(site)
    finally:
        site.close()


def test_worker_killed_on_a_full_disk_loses_nothing(tmp_path: Path, small_disk: Path) -> None:
    """Tasks that were running when the disk was full run again."""
    site = Site(tmp_path, small_disk / "broker.db")
    try:
        first = site.start()
        ids = site.send_many("work", [(number, 0.01) for number in range(200)])
        site.started(ids[20])
        filler = fill(small_disk)
        site.until(lambda: "does not answer" in first.log or not site.waiting(), "the worker to notice")
        first.kill()
        filler.unlink()
        second = site.start(name="two")
        site.finished(*ids)
        site.drained()
        second.stop()
        check(site)
    finally:
        site.close()


def test_damaged_file_is_a_clear_error(site: Site) -> None:
    """F-49: reported once, with advice; no crash loop."""
    site.send("work", 1)
    site.client.close()
    with site.database.open("r+b") as file:
        file.write(os.urandom(4096))
    worker = site.start(ready=False)
    assert worker.wait() == 1
    assert "is not a sound SQLite database" in worker.log
    assert "Traceback" not in worker.log
    with pytest.raises(QWorkerError, match="not a sound SQLite database"):
        site.send("work", 2)


def test_deleted_file_is_noticed(site: Site) -> None:
    """F-81: otherwise the worker would wait for tasks in the deleted file forever: it opens the new one."""
    worker = site.start()
    site.finished(site.send("work", 1))
    site.client.close()
    for path in site.path.glob("broker.db*"):
        if path.is_file():
            path.unlink()
    site.finished(site.send("work", 2))
    worker.stop()
    assert "Traceback" not in worker.log


def test_full_output_pipe_does_not_block_the_worker(site: Site) -> None:
    """F-84: neither the worker nor its tasks."""
    reading, writing = os.pipe()
    try:
        worker = site.start(stdout=writing, stderr=writing, ready=False)
        ids = site.send_many("work", [(number,) for number in range(2000)])
        ids += [site.send("misbehave", "print") for _ in range(4)]
        site.finished(*ids)
        site.drained()
        worker.stop()
        check(site)
    finally:
        os.close(reading)
        os.close(writing)


def test_worker_without_standard_streams(site: Site) -> None:
    """Started with closed streams, as by some init systems."""
    log = site.path / "worker.log"
    worker = site.start("-f", str(log), ready=False, wrapper=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"])
    ids = [site.send("work", number) for number in range(20)]
    ids += [site.send("misbehave", habit) for habit in ("print", "SystemExit")]
    site.finished(*ids)
    assert worker.alive
    worker.stop()
    check(site)
    assert "Traceback (most recent call last):\n  File" not in log.read_text()


@pytest.mark.slow
def test_busy_cpu_does_not_make_a_worker_dead(site: Site) -> None:
    """F-83: a worker that gets little CPU time is slow, not dead."""
    site.settings["worker_lease_seconds"] = 3
    workers = [site.start(name=name) for name in ("one", "two")]
    go = site.path / "go"
    ids = [site.send("until_file", str(go)) for _ in range(4)]
    site.started(ids[0])
    end = time.monotonic() + 5.0
    spinners = [multiprocessing.get_context("spawn").Process(target=_spin, args=(end,)) for _ in range(8)]
    for spinner in spinners:
        spinner.start()
    for spinner in spinners:
        spinner.join()
    go.touch()
    site.finished(*ids)
    site.drained()
    for worker in workers:
        worker.stop()
        assert "is dead" not in worker.log
        assert "silent" not in worker.log
    check(site)
    assert len(site.records(kind=STARTED)) == 4


def _spin(end: float) -> None:
    while time.monotonic() < end:
        pass


def resident(pid: int) -> float:
    """Resident memory of *pid* in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_many_waiting_messages_do_not_fill_the_memory(site: Site) -> None:
    """F-56: with ten thousand messages waiting the worker starts as quickly as usual, and holds only a few
    of them."""
    site.send_many("work", [(number,) for number in range(10_000)])
    worker = site.start()
    site.until(lambda: len(site.records()) > 2000, "the work to begin")
    early = resident(worker.pid)
    site.drained()
    assert resident(worker.pid) < early + 20
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 10_000


def test_large_messages_do_not_fill_the_memory(site: Site) -> None:
    """F-13: prefetched messages are limited by count and by size."""
    worker = site.start()
    site.finished(site.send("work", 1))
    before = resident(worker.pid)
    for _ in range(8):
        site.send_many("swallow", [("x" * (2 << 20),)] * 20)
    most = before
    while site.waiting():
        most = max(most, resident(worker.pid))
        time.sleep(0.02)
    assert most < before + 160, "half of what there was"
    site.drained()
    worker.stop()
    check(site)
