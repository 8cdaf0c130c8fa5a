"""Workers on Disque, played by its stand-in, with and without faults."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.disque_servers import Disque
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.together import (
    everything_runs_exactly_once,
    long_task_is_not_repeated,
    stop_returns_unstarted_tasks,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


SETTINGS = {
    "broker_transport_options": Options(retry=4, wait_time_seconds=5),
    "worker_lease_seconds": 3.0,
}


@pytest.fixture(scope="module")
def server() -> Iterator[Disque]:
    with closing(Disque()) as server:
        yield server


@pytest.fixture
def remote(server: Disque, tmp_path: Path) -> Iterator[RemoteSite]:
    server.reset()
    with RemoteSite(tmp_path, server.url, server.url, **SETTINGS) as site:
        yield site


def test_everything_runs_once_without_faults(remote: RemoteSite, server: Disque) -> None:
    """Including acks; delayed messages wait in Disque."""
    everything_runs_exactly_once(remote, calls=60, later=2.5)
    assert server.counts("celery") == (0, 0)


@pytest.mark.slow
def test_task_longer_than_the_retry_time_is_not_repeated(remote: RemoteSite) -> None:
    long_task_is_not_repeated(remote, 9.0)


def test_stopping_worker_returns_unstarted_tasks(remote: RemoteSite, server: Disque) -> None:
    given_back = stop_returns_unstarted_tasks(remote)
    assert server.counts("celery") == (given_back, 0), "at once, and not after the retry time"


def test_connection_faults_lose_nothing(remote: RemoteSite, server: Disque) -> None:
    worker = remote.start()
    remote.send_many("work", [(number, 0.02) for number in range(40)])
    server.ask("STANDIN", "drop", 3)
    remote.until(lambda: len(remote.records(kind=STARTED)) > 10, "tasks to start")
    server.ask("STANDIN", "half", 3)
    server.ask("STANDIN", "slow", "0.05")
    remote.drained()
    worker.stop()
    check(remote)


def test_node_failure_loses_nothing(tmp_path: Path) -> None:
    """With three nodes: the others have its jobs, and its clients connect to them."""
    with (
        closing(Disque(nodes=3)) as server,
        RemoteSite(tmp_path, server.url, server.url, **SETTINGS) as site,
    ):
        worker = site.start()
        site.send_many("work", [(number, 0.05) for number in range(60)])
        site.until(lambda: len(site.records(kind=STARTED)) > 5, "tasks to start")
        for node in range(2):
            server.stop_node(node, 2)
            site.ended(site.send("work", node))
            time.sleep(2.0)  # until it has restarted
        site.drained()
        worker.stop()
        check(site)


def test_password_is_not_logged_and_a_wrong_one_is_a_clear_error(tmp_path: Path) -> None:
    with (
        closing(Disque(password="sesame")) as server,
        RemoteSite(tmp_path, server.url, server.url, **SETTINGS) as site,
    ):
        worker = site.start()
        site.ended(site.send("work", 1))
        worker.stop()
        assert "sesame" not in worker.log
        wrong = server.url.replace("sesame", "open-barley")
        for url, hint in (
            (wrong, "is not the node's requirepass"),
            (wrong.replace(":open-barley@", ""), "requires a password"),
        ):
            said = site.qworker("queues", code=1, QWORKER_BROKER_URL=url)
            assert hint in said
            assert "open-barley" not in said
            assert "Traceback" not in said
