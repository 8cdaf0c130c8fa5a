"""Workers of Amazon SQS, as moto plays it: what happens to messages when all goes well, and when it does
not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.harness import WorkerProcess
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.sqs_server import REGION, Sqs
from tests.acceptance.together import repeated
from tests.support.sqs_faults import SqsFaults

CALLS = ("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch")
pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server() -> Iterator[Sqs]:
    with closing(Sqs()) as server:
        yield server


@pytest.fixture
def remote(server: Sqs, tmp_path: Path) -> Iterator[RemoteSite]:
    server.reset()
    settings = {
        "broker_transport_options": Options(region=REGION, visibility_timeout=6),
        "worker_lease_seconds": 3.0,
    }
    with RemoteSite(tmp_path, server.url, server.url, **settings) as site:
        yield site


def processor_seconds(worker: WorkerProcess) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in worker.tree()]
    return sum(time.user + time.system for time in times)


def test_nothing_happens(remote: RemoteSite, server: Sqs) -> None:
    """All runs once, and is deleted; what is due later is held by SQS."""
    worker = remote.start()
    remote.send_many("work", [(number,) for number in range(60)])
    remote.send_many("work_async", [(number, 0.01) for number in range(10)])
    for number in range(5):
        remote.send("work", number, countdown=2.5)
        remote.send("flaky", 2)
        remote.send("once", number)
    remote.drained()
    worker.stop()
    check(remote)
    assert server.counts("celery") == (0, 0, 0)
    per_id = [len(remote.records(id, STARTED)) for id in remote.sent if remote.sent[id][0] != "flaky"]
    assert per_id == [1] * len(per_id)
    assert worker.log.count("ERROR") == worker.log.count("WARNING") == 0, worker.log
    assert set(remote.states().values()) == {"SUCCESS"}


@pytest.mark.slow
def test_a_task_may_be_longer_than_the_visibility_timeout(remote: RemoteSite) -> None:
    """A live worker goes on hiding what it runs, also while it stops."""
    first = remote.start()
    ids = [remote.send("work", number, 13.0) for number in range(2)]
    remote.started(*ids)
    second = remote.start(name="two")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 0


def test_what_is_due_later_waits_in_sqs(remote: RemoteSite, server: Sqs) -> None:
    worker = remote.start()
    soon = remote.send("work", 1, countdown=6.0)
    remote.send("work", 2, countdown=500.0)
    assert server.counts("celery") == (0, 2, 0)
    (start,) = remote.started(soon)
    assert 0.0 <= start.wall - remote.due[soon] < 3.0
    worker.kill()
    assert server.counts("celery")[1] == 1, "a worker that dies takes none of them along"


def test_a_stop_is_prompt(remote: RemoteSite) -> None:
    worker = remote.start()
    worker.wait_pool()
    began = time.monotonic()
    worker.stop()
    assert time.monotonic() - began < 4.0, "it does not wait for the end of a long poll"


def test_a_stop_gives_back_what_has_not_started(remote: RemoteSite, server: Sqs) -> None:
    ids = [remote.send("work", number, 1.0) for number in range(8)]
    worker = remote.start()
    remote.until(lambda: len(remote.records(kind=STARTED)) == 2, "tasks to start")
    worker.stop()
    ran = len(remote.records(kind=STARTED))
    assert ran < len(ids)
    assert server.counts("celery") == (len(ids) - ran, 0, 0), "at once, and not after the visibility timeout"


@pytest.mark.slow
def test_an_idle_worker_rests(remote: RemoteSite) -> None:
    worker = remote.start()
    worker.wait_pool()
    remote.ended(remote.send("work", 1))
    before = processor_seconds(worker)
    time.sleep(5.0)  # the load of this time is what is looked at
    used = (processor_seconds(worker) - before) / 5.0
    assert used < 0.03, f"{used:.1%} of a processor"
    sent = time.time()
    (start,) = remote.started(remote.send("work", 2))
    assert start.wall - sent < 1.0, "SQS answers as soon as there is a message"
    worker.stop()


def test_the_broker_was_away_and_has_forgotten_all(remote: RemoteSite, server: Sqs) -> None:
    worker = remote.start()
    remote.ended(remote.send("work", 1))
    server.kill()
    remote.until(lambda: "does not answer" in worker.log, "it to notice")
    server.start()
    remote.client.broker.close()
    remote.ended(remote.send("work", 2))
    remote.drained()
    worker.stop()


def test_a_bad_day(server: Sqs, tmp_path: Path) -> None:
    """Throttled, and answered by half and by others: all of it is tried again, and nothing is lost."""
    server.reset()
    settings = {
        "broker_transport_options": Options(region=REGION, visibility_timeout=6, wait_time_seconds=1),
        "worker_lease_seconds": 3.0,
    }
    with (
        closing(SqsFaults(server.endpoint)) as faults,
        RemoteSite(tmp_path, faults.url, server.url, **settings) as site,
    ):
        worker = site.start()
        for number, fault in enumerate(("throttled", "503", "drop", "nonsense", "half")):
            for operation in CALLS:
                faults.fail(operation, fault, times=3)
            site.send_many("work", [(number,) for number in range(30)])
            site.ended(site.send("work", number))
        faults.heal()
        site.drained()
        worker.stop()
        assert "Traceback" not in worker.log
        assert "s3cr3t" not in worker.log
        check(site)
