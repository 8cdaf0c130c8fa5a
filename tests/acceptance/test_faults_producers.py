"""Producers that are killed, fork, send concurrently, or are blocked."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from qworker.errors import QWorkerError
from tests.acceptance.harness import Site
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

PRODUCER = """
import sys
from qworker import QWorker
app = QWorker("producer", broker=sys.argv[1])
while True:
    print(app.send_task("work", (7,)).id, flush=True)
"""


def producer(site: Site) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRODUCER, site.url],
        env=site.environment(),
        cwd=site.path,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_producers_killed_while_sending_lose_no_accepted_call(site: Site) -> None:
    """F-51, F-49: every call for which send_task() returned runs once; the file stays intact."""
    chance = random.Random(51)
    worker = site.start()
    accepted: set[str] = set()
    for _ in range(6):
        crowd = [producer(site) for _ in range(3)]
        firsts = [one.stdout.readline().strip() for one in crowd if one.stdout]
        accepted.update(firsts)
        time.sleep(chance.uniform(0, 0.1))
        for one in crowd:
            one.kill()
        for one in crowd:
            assert one.stdout
            accepted.update(line.strip() for line in one.stdout if line.endswith("\n"))
            one.stdout.close()
            one.wait()
    assert len(accepted) > 18
    site.drained()
    worker.stop()
    starts = [record.id for record in site.records(kind=STARTED)]
    assert len(starts) == len(set(starts))
    assert accepted <= set(starts), "I-9: what was returned is accepted"
    assert len(starts) <= len(accepted) + 18, "at most one of each producer was accepted unheard"
    assert set(site.states().values()) == {"SUCCESS"}
    assert site.query("PRAGMA integrity_check") == [("ok",)]


def test_concurrent_producers_never_see_a_locked_file(site: Site) -> None:
    """F-49: eight processes and a worker."""
    worker = site.start()
    code = (
        "import sys\nfrom qworker import QWorker\napp = QWorker('p', broker=sys.argv[1])\n"
        "for number in range(50): app.send_task('work', (number,))\n"
        "print('sent')"
    )
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", code, site.url],
            env=site.environment(),
            cwd=site.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(8)
    ]
    assert [one.communicate()[0] for one in crowd] == ["sent\n"] * 8
    site.drained()
    worker.stop()
    ids = [record.id for record in site.records(kind=STARTED)]
    assert len(ids) == len(set(ids)) == 400
    assert "does not answer" not in worker.log


FORKING = """
import os, sys
from qworker import QWorker
app = QWorker("forking", broker=sys.argv[1])
app.send_task("work", (0,))
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        for number in range(50):
            app.send_task("work", (number,))
        os._exit(0)
    children.append(pid)
for number in range(50):
    app.send_task("work", (number,))
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(codes)
"""


def test_producer_that_forks(site: Site) -> None:
    """F-54: parent and children continue to send with what was opened before the fork."""
    worker = site.start()
    ended = subprocess.run(
        [sys.executable, "-c", FORKING, site.url],
        env=site.environment(),
        cwd=site.path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout == "[0, 0, 0, 0]\n", ended.stderr
    site.drained()
    worker.stop()
    ids = [record.id for record in site.records(kind=STARTED)]
    assert len(ids) == len(set(ids)) == 251
    assert site.query("PRAGMA integrity_check") == [("ok",)]


def test_producer_with_many_threads(site: Site) -> None:
    worker = site.start()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            for number in range(40):
                site.send("work", number)
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(site.sent) == 480
    site.drained()
    worker.stop()
    check(site)


def test_locked_file_delays_but_loses_nothing(site: Site) -> None:
    """I-9: a call returns or raises within its timeout; the worker waits."""
    worker = site.start()
    go = site.path / "go"
    running = site.send("until_file", str(go))
    site.started(running)
    before = site.send("work", 1)
    blocker = sqlite3.connect(site.database, isolation_level=None, timeout=30)
    try:
        blocker.execute("BEGIN IMMEDIATE")
        site.client.conf.update(task_publish_timeout=0.5)
        begun = time.monotonic()
        with pytest.raises(QWorkerError, match=r"locked|accepted no message"):
            site.client.send_task("work", (2,))
        assert time.monotonic() - begun < 5.0
        go.touch()
        site.ended(running)
        time.sleep(0.5)
    finally:
        blocker.close()
    site.client.conf.update(task_publish_timeout=10.0)
    site.finished(running, before, site.send("work", 3))
    site.drained()
    worker.stop()
    check(site)
    assert len(site.records(kind=STARTED)) == 3


def test_task_that_dies_after_sending_tasks(site: Site) -> None:
    """Its calls are sent and run; it runs again and sends them again: at-least-once includes follow-ups."""
    worker = site.start()
    id = site.send("send_and_die", 5)
    site.finished(id)
    site.drained()
    worker.stop()
    others = [record.id for record in site.records(kind=STARTED) if record.id != id]
    assert len(others) == len(set(others)) == 10
