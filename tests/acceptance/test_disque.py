"""Workers of Disque, as its stand-in plays it: what happens to jobs when all goes well, and when not."""

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
    a_long_task_is_not_run_again,
    a_stop_gives_back,
    everything_runs_exactly_once,
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


def test_nothing_happens(remote: RemoteSite, server: Disque) -> None:
    """All runs once, and is acknowledged; what is due later waits in Disque."""
    everything_runs_exactly_once(remote, calls=60, later=2.5)
    assert server.counts("celery") == (0, 0)


@pytest.mark.slow
def test_a_task_may_be_longer_than_the_retry_time(remote: RemoteSite) -> None:
    a_long_task_is_not_run_again(remote, 9.0)


def test_a_stop_gives_back_what_has_not_started(remote: RemoteSite, server: Disque) -> None:
    given_back = a_stop_gives_back(remote)
    assert server.counts("celery") == (given_back, 0), "at once, and not after the retry time"


def test_faults_on_the_wire_lose_nothing(remote: RemoteSite, server: Disque) -> None:
    worker = remote.start()
    remote.send_many("work", [(number, 0.02) for number in range(40)])
    server.ask("STANDIN", "drop", 3)
    remote.until(lambda: len(remote.records(kind=STARTED)) > 10, "tasks to start")
    server.ask("STANDIN", "half", 3)
    server.ask("STANDIN", "slow", "0.05")
    remote.drained()
    worker.stop()
    check(remote)


def test_a_node_dies(tmp_path: Path) -> None:
    """Of three: what it had, the others have, and who talked with it goes to them."""
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
            time.sleep(2.0)  # until it is back
        site.drained()
        worker.stop()
        check(site)


def test_passwords(tmp_path: Path) -> None:
    """The right one is never shown, and a wrong one is one clear error."""
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
