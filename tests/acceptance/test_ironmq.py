"""Workers on IronMQ, played by our stand-in, with and without faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.invariants import check
from tests.acceptance.ironmq_process import IronProcess
from tests.acceptance.ledger import STARTED
from tests.acceptance.together import (
    check_no_faults,
    repeated,
    stop_returns_unstarted_tasks,
    work_continues_after_a_restart,
)
from tests.support.ironmq_server import TOKEN

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.more_brokers,
    pytest.mark.timeout(120),
]


@pytest.fixture
def server() -> Iterator[IronProcess]:
    with closing(IronProcess()) as server:
        yield server


@pytest.fixture
def remote(server: IronProcess, tmp_path: Path) -> Iterator[RemoteSite]:
    options = Options(wait_time_seconds=1)
    with RemoteSite(
        tmp_path, server.url, server.url, worker_lease_seconds=3.0, broker_transport_options=options
    ) as site:
        yield site


def test_everything_runs_once_without_faults(remote: RemoteSite, server: IronProcess) -> None:
    """And is deleted, with few requests."""
    worker = remote.start()
    worker.wait_pool()
    before = server.tell()["calls"]
    remote.send_many("work", [(number,) for number in range(400)])
    remote.until(lambda: len(remote.records(kind=STARTED)) == 400, "tasks to start")
    after = server.tell()["calls"]
    for number in range(5):
        remote.send("work", number, countdown=2.5)
        remote.send("flaky", 2)
    remote.drained()
    worker.stop()
    check(remote)
    assert server.size("celery") == 0
    check_no_faults(remote, worker)
    assert TOKEN not in worker.log
    calls = {name: number - before.get(name, 0) for name, number in after.items()}
    assert sum(calls.values()) < 0.4 * 400, calls


def test_stopping_worker_returns_unstarted_tasks(remote: RemoteSite, server: IronProcess) -> None:
    given_back = stop_returns_unstarted_tasks(remote, within=6.0)
    assert server.size("celery") == given_back
    second = remote.start(name="two")
    remote.drained(seconds=20.0)  # before the 30 s after which reserved messages would be returned
    second.stop()
    assert repeated(remote) == 0


def test_server_errors_and_data_loss(remote: RemoteSite, server: IronProcess) -> None:
    worker = remote.start()
    for fault in ("503", "429", "half", "drop", "slow", "nonsense"):
        server.tell(fault=fault)
        remote.ended(remote.send("work", 1))
    server.kill()
    server.lose()
    work_continues_after_a_restart(remote, worker, server)
    assert TOKEN not in worker.log
