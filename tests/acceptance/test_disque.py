"""Workers of Disque, as its stand-in plays it: what happens to jobs when all goes well, and when not."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import Options, RemoteSite
from tests.acceptance.disque_servers import Disque
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.together import repeated

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
    assert server.counts("celery") == (0, 0)
    per_id = [len(remote.records(id, STARTED)) for id in remote.sent if remote.sent[id][0] != "flaky"]
    assert per_id == [1] * len(per_id)
    assert worker.log.count("ERROR") == worker.log.count("WARNING") == 0, worker.log
    assert set(remote.states().values()) == {"SUCCESS"}


@pytest.mark.slow
def test_a_task_may_be_longer_than_the_retry_time(remote: RemoteSite) -> None:
    """A live worker says that it works on it, also while it stops."""
    first = remote.start()
    ids = [remote.send("work", number, 9.0) for number in range(2)]
    remote.started(*ids)
    second = remote.start(name="two")
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 0


def test_a_stop_gives_back_what_has_not_started(remote: RemoteSite, server: Disque) -> None:
    ids = [remote.send("work", number, 1.0) for number in range(8)]
    worker = remote.start()
    remote.until(lambda: len(remote.records(kind=STARTED)) == 2, "tasks to start")
    worker.stop()
    ran = len(remote.records(kind=STARTED))
    assert ran < len(ids)
    assert server.counts("celery") == (len(ids) - ran, 0), "at once, and not after the retry time"


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
            (wrong.replace(":open-barley@", ""), "asks for a password"),
        ):
            said = site.qworker("queues", code=1, QWORKER_BROKER_URL=url)
            assert hint in said
            assert "open-barley" not in said
            assert "Traceback" not in said
