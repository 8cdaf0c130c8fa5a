"""Workers on NATS JetStream, with and without faults."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.nats_server import Nats
from tests.acceptance.processes import kill
from tests.acceptance.together import (
    everything_runs_exactly_once,
    long_task_is_not_repeated,
    repeated,
    stop_returns_unstarted_tasks,
    stops,
    work_continues_after_a_restart,
)

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.more_brokers,
    pytest.mark.timeout(120),
]
LEASE_SECONDS = 3.0


@pytest.fixture(scope="module")
def server() -> Iterator[Nats]:
    with closing(Nats()) as server:
        yield server


@pytest.fixture
def remote(server: Nats, tmp_path: Path) -> Iterator[RemoteSite]:
    server.reset()
    with RemoteSite(tmp_path, server.url, server.url, worker_lease_seconds=LEASE_SECONDS) as site:
        yield site


def test_everything_runs_once_without_faults(remote: RemoteSite, server: Nats) -> None:
    """And is deleted; delayed messages are held by the server."""
    everything_runs_exactly_once(remote, calls=60, later=2.5)
    assert server.counts("celery") == (0, 0)


@pytest.mark.slow
def test_task_longer_than_the_lease_is_not_repeated(remote: RemoteSite) -> None:
    long_task_is_not_repeated(remote, 3 * LEASE_SECONDS)


def test_delayed_message_survives_a_kill_of_worker_and_server(remote: RemoteSite, server: Nats) -> None:
    """After kill -9 of both, the server may keep messages that were acknowledged just before: its consumer
    knows it, but its stream does not. So the remaining messages are not counted."""
    worker = remote.start()
    late = remote.send("work", 2, countdown=12.0)
    remote.ended(remote.send("work", 1))
    remote.until(lambda: server.counts("celery") == (0, 1), "the server to hold it")
    worker.kill()
    server.kill()
    server.start()
    assert server.kept() >= 1
    second = remote.start(name="two")
    remote.ended(remote.send("work", 3), late)
    second.stop()
    (start,) = remote.records(late, STARTED)
    assert start.wall >= remote.due[late]


def test_stopping_worker_returns_unstarted_tasks_at_once(remote: RemoteSite) -> None:
    stop_returns_unstarted_tasks(remote)
    ran = len(remote.records(kind=STARTED))
    second = remote.start(name="two")
    began = time.monotonic()
    remote.until(lambda: len(remote.records(kind=STARTED)) > ran, "the next to start")
    assert time.monotonic() - began < 4.0, "at once, and not after the lease"
    remote.drained()
    stops(second, within=4.0)
    check(remote)
    assert repeated(remote) == 0


def test_server_outage_with_data_loss(remote: RemoteSite, server: Nats) -> None:
    worker = remote.start()
    remote.ended(remote.send("work", 1))
    server.kill()
    server.lose()
    work_continues_after_a_restart(remote, worker, server)


def test_revocation_reaches_workers_that_start_later(remote: RemoteSite) -> None:
    id = remote.send("work", 1, countdown=3.0)
    remote.client.control.revoke(id)
    worker = remote.start()
    remote.until(lambda: remote.states().get(id) == "REVOKED", "it to be revoked")
    worker.stop()
    assert not remote.records(id, STARTED)


def test_delayed_messages_are_not_moved(remote: RemoteSite, server: Nats) -> None:
    """A worker has returned them to the server until they are due, so no other client gets them before."""
    worker = remote.start()
    remote.send("work", 1, countdown=300)
    remote.until(lambda: server.counts("celery") == (0, 1), "the server to hold it")
    worker.stop()
    remote.send_many("work", [(number,) for number in range(7)])
    away = f"sqlite:///{remote.path}/away.db"
    assert "Moved 7 messages" in remote.qworker("move", "--yes", server.url, away)
    assert server.counts("celery") == (0, 1)
    assert "Moved 7 messages" in remote.qworker("move", "--yes", away, server.url)
    assert "8" in remote.qworker("purge", "--yes")
    assert server.counts("celery") == (0, 0)


@pytest.mark.parametrize("login", ["", "qworker:wr0ng@", "t0ken@"])
def test_refused_login_is_one_clear_error(remote: RemoteSite, server: Nats, login: str) -> None:
    url = f"nats://{login}127.0.0.1:{server.port}"
    said = remote.qworker("queues", code=1, QWORKER_BROKER_URL=url)
    assert "refuses the login" in said
    assert "wr0ng" not in said
    assert "t0ken" not in said
    assert "Traceback" not in said


def test_early_acks_of_a_frozen_worker_do_not_leave_tasks_pending(server: Nats, tmp_path: Path) -> None:
    """The server carries acks out while the worker is frozen; the answers come after the leases."""
    broken = Broken(server)
    with broken.exposed(), RemoteSite(tmp_path, broken.url, broken.direct, worker_lease_seconds=2) as site:
        worker = site.start("-c", "2")
        site.send_many("once", [(number, 0.05) for number in range(100)])
        for count in (1, 20, 40):
            site.until(lambda count=count: len(site.records(kind=STARTED)) > count, "tasks to run")
            broken.proxy.down.open = False
            time.sleep(0.3)
            frozen = worker.tree()
            for pid in frozen:
                kill(pid, signal.SIGSTOP)
            broken.proxy.down.open = True
            time.sleep(3.0)
            for pid in frozen:
                kill(pid, signal.SIGCONT)
        site.until(lambda: not site.pending(), "every call to have ended", 60.0)
        runs = Counter(record.id for record in site.records(kind=STARTED))
        assert max(runs.values()) == 1
        assert worker.alive
