"""Workers on Amazon SQS, played by moto, with and without faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.harness import WorkerProcess
from tests.acceptance.invariants import check
from tests.acceptance.sqs_server import REGION, Sqs
from tests.acceptance.together import (
    everything_runs_exactly_once,
    long_task_is_not_repeated,
    stop_returns_unstarted_tasks,
    stops,
    work_continues_after_a_restart,
)
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


def test_everything_runs_once_without_faults(remote: RemoteSite, server: Sqs) -> None:
    """And is deleted; delayed messages wait in SQS."""
    everything_runs_exactly_once(remote, calls=60, later=2.5)
    assert server.counts("celery") == (0, 0, 0)


@pytest.mark.slow
def test_task_longer_than_the_visibility_timeout_is_not_repeated(remote: RemoteSite) -> None:
    long_task_is_not_repeated(remote, 13.0)


def test_delayed_messages_wait_in_sqs(remote: RemoteSite, server: Sqs) -> None:
    worker = remote.start()
    soon = remote.send("work", 1, countdown=6.0)
    remote.send("work", 2, countdown=500.0)
    assert server.counts("celery") == (0, 2, 0)
    (start,) = remote.started(soon)
    assert 0.0 <= start.wall - remote.due[soon] < 3.0
    worker.kill()
    assert server.counts("celery")[1] == 1, "a worker that dies takes none of them along"


def test_idle_worker_stops_promptly(remote: RemoteSite) -> None:
    worker = remote.start()
    worker.wait_pool()
    stops(worker, within=4.0)


def test_stopping_worker_returns_unstarted_tasks(remote: RemoteSite, server: Sqs) -> None:
    given_back = stop_returns_unstarted_tasks(remote)
    assert server.counts("celery") == (given_back, 0, 0), "at once, and not after the visibility timeout"


@pytest.mark.slow
def test_idle_worker_uses_little_cpu_time(remote: RemoteSite) -> None:
    worker = remote.start()
    worker.wait_pool()
    remote.ended(remote.send("work", 1))
    before = processor_seconds(worker)
    time.sleep(5.0)  # the CPU time of this interval is measured
    used = (processor_seconds(worker) - before) / 5.0
    assert used < 0.03, f"{used:.1%} of a processor"
    sent = time.time()
    (start,) = remote.started(remote.send("work", 2))
    assert start.wall - sent < 1.0, "SQS answers as soon as there is a message"
    worker.stop()


def test_server_outage_with_data_loss(remote: RemoteSite, server: Sqs) -> None:
    worker = remote.start()
    remote.ended(remote.send("work", 1))
    server.kill()
    work_continues_after_a_restart(remote, worker, server)


def test_repeated_server_errors_lose_nothing(server: Sqs, tmp_path: Path) -> None:
    """Throttled, incomplete and wrong responses: every request is retried."""
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
