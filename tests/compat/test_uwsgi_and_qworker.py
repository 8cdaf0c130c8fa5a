"""Two qworker spoolers and a real uWSGI on one directory, with three writers: each job runs once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from qworker.spooler.files.packet import PREFIX, encode
from qworker.spooler.files.writing import NewJob
from tests.acceptance.ledger import STARTED
from tests.acceptance.spool_site import SpoolSite
from tests.compat.test_uwsgi_spooler import PRODUCER, Uwsgi
from tests.support.waiting import until

pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")

pytestmark = [pytest.mark.compat, pytest.mark.fault, pytest.mark.timeout(120)]

PAUSE = "__import__('time').sleep(0.002)"
"""Leaves some jobs to the others."""


@pytest.fixture
def uwsgi(tmp_path: Path) -> Iterator[Uwsgi]:
    with closing(Uwsgi(tmp_path)) as uwsgi:
        yield uwsgi


@pytest.fixture
def spool(uwsgi: Uwsgi) -> Iterator[SpoolSite]:
    """On the same directory."""
    with closing(SpoolSite(uwsgi.path)) as site:
        yield site


def write_raw(place: Path, ids: range) -> None:
    """Like a shell script: under another name first, then renamed."""
    for number in ids:
        path = place / f"raw{number}"
        path.write_bytes(encode({"id": f"r{number}", "do": "sleep", "seconds": "0.002"}))
        path.rename(place / f"{PREFIX}elsewhere_{number}")


def write_all(spool: SpoolSite, uwsgi: Uwsgi) -> set[str]:
    """Let three writers write 1,000 jobs at the same time; returns their ids."""
    uwsgi.start(
        PRODUCER.format(
            body="for n in range(334):"
            " uwsgi.spool({b'id': b'u%d' % n, b'do': b'sleep', b'seconds': b'0.002'})"
        ),
        f"--spooler-external={uwsgi.place}",
        "--workers=1",
    )
    threads = [
        threading.Thread(target=write_raw, args=(spool.place, range(333))),
        threading.Thread(
            target=spool.jobs,
            args=([f"q{n}" for n in range(333)],),
            kwargs={"do": "sleep", "seconds": "0.002"},
        ),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {f"{by}{n}" for by, most in (("u", 334), ("r", 333), ("q", 333)) for n in range(most)}


def ran(spool: SpoolSite, uwsgi: Uwsgi) -> Counter[str]:
    return spool.runs(STARTED) + Counter(uwsgi.ran())


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an app"])
def test_three_spoolers_run_each_job_once(spool: SpoolSite, uwsgi: Uwsgi, beside: bool) -> None:
    workers = [spool.beside() if beside else spool.work(), spool.work(name="two")]
    spool.job("first")
    spool.empty()
    uwsgi.consume("--spooler-processes=2", "--spooler-quiet", body=PAUSE)
    if beside:
        for number in range(100):
            spool.send("work", number, 0.002)
    ids = write_all(spool, uwsgi)
    until(lambda: not ids - set(ran(spool, uwsgi)), say=lambda: f"for {ids - set(ran(spool, uwsgi))}")
    spool.empty()
    if beside:
        spool.drained()
    for worker in workers:
        worker.stop()
    assert ran(spool, uwsgi) == dict.fromkeys([*ids, "first", *spool.sent], 1)
    assert spool.aside() == {}
    took_part = {worker.name for worker in workers for record in spool.records() if record.pid in worker.seen}
    assert took_part == {"one", "two"}


def test_kills_on_both_sides_lose_no_job(spool: SpoolSite, uwsgi: Uwsgi) -> None:
    """Repeated kill -9 of qworker's and uWSGI's processes: only jobs that were running run again."""
    uwsgi.consume("--spooler-processes=2", "--spooler-quiet", body=PAUSE)
    one, two = spool.work(), spool.work(name="two")
    written: set[str] = set()
    writing = threading.Thread(target=lambda: written.update(write_all(spool, uwsgi)))
    writing.start()
    kills = 0
    while writing.is_alive() or spool.files():
        time.sleep(0.2)
        if kills < 8:
            kills += 1
            if kills % 4 == 0:
                one.kill()
                one = spool.work(name=f"one{kills}", ready=False)
            elif pool := two.pool():
                os.kill(pool[0], signal.SIGKILL)
    writing.join()
    found = ran(spool, uwsgi)
    assert set(found) == written
    assert sum(found.values()) <= len(written) + 4 * kills, "what each of the killed had begun"
    one.wait_ready()
    for worker in (one, two):
        worker.stop()
    assert spool.aside() == {}


def test_job_of_a_killed_uwsgi_is_taken_over_at_once(spool: SpoolSite, uwsgi: Uwsgi) -> None:
    uwsgi.consume(body="__import__('time').sleep(3600)")
    spool.job("one")
    until(lambda: uwsgi.ran() == ["one"])
    worker = spool.work()
    spool.job("two", "wait", file=str(spool.path / "go"))
    spool.begun("two")
    assert spool.runs(STARTED) == {"two": 1}, "uWSGI has the other"
    uwsgi.close()
    spool.begun("one")
    (spool.path / "go").touch()
    spool.empty()
    assert spool.runs() == {"one": 1, "two": 1}
    worker.stop()


def test_job_of_a_killed_spooler_is_taken_over_by_uwsgi(spool: SpoolSite, uwsgi: Uwsgi) -> None:
    worker = spool.work()
    spool.job("one", "wait", file=str(spool.path / "go"))
    spool.begun("one")
    uwsgi.consume()
    spool.writer.write_many([NewJob({"id": "two", "do": "sleep", "seconds": "0"})])
    until(lambda: spool.runs()["two"] or "two" in uwsgi.ran())
    assert "one" not in uwsgi.ran()
    worker.kill()
    until(lambda: "one" in uwsgi.ran())
    spool.empty()
    assert Counter(uwsgi.ran())["one"] == 1
