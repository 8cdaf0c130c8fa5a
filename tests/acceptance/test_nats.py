"""Workers of NATS JetStream: what happens to messages when all goes well, and when it does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.nats_server import Nats
from tests.acceptance.together import (
    a_long_task_is_not_run_again,
    a_stop_gives_back,
    everything_runs_exactly_once,
    repeated,
    stops,
    work_goes_on_when_it_is_back,
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


def test_nothing_happens(remote: RemoteSite, server: Nats) -> None:
    """All runs once, and is deleted; what is due later is held by the server."""
    everything_runs_exactly_once(remote, calls=60, later=2.5)
    assert server.counts("celery") == (0, 0)


@pytest.mark.slow
def test_a_task_may_be_longer_than_the_lease(remote: RemoteSite) -> None:
    a_long_task_is_not_run_again(remote, 3 * LEASE_SECONDS)


def test_what_is_due_later_outlives_worker_and_server(remote: RemoteSite, server: Nats) -> None:
    """After kill -9 of both the server may keep for ever what was acknowledged just before: its consumer
    knows that it was, and its stream does not. So it is not counted what is left there."""
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


def test_a_stop_is_prompt_and_gives_back_what_has_not_started(remote: RemoteSite) -> None:
    a_stop_gives_back(remote)
    ran = len(remote.records(kind=STARTED))
    second = remote.start(name="two")
    began = time.monotonic()
    remote.until(lambda: len(remote.records(kind=STARTED)) > ran, "the next to start")
    assert time.monotonic() - began < 4.0, "at once, and not after the lease"
    remote.drained()
    stops(second, within=4.0)
    check(remote)
    assert repeated(remote) == 0


def test_the_server_was_away_and_has_forgotten_all(remote: RemoteSite, server: Nats) -> None:
    worker = remote.start()
    remote.ended(remote.send("work", 1))
    server.kill()
    server.lose()
    work_goes_on_when_it_is_back(remote, worker, server)


def test_a_revocation_reaches_workers_that_start_later(remote: RemoteSite) -> None:
    id = remote.send("work", 1, countdown=3.0)
    remote.client.control.revoke(id)
    worker = remote.start()
    remote.until(lambda: remote.states().get(id) == "REVOKED", "it to be revoked")
    worker.stop()
    assert not remote.records(id, STARTED)


def test_what_is_delayed_is_not_moved(remote: RemoteSite, server: Nats) -> None:
    """A worker has given it back to the server until it is due, and nobody else is given it before."""
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
def test_a_login_that_is_refused_is_one_clear_error(remote: RemoteSite, server: Nats, login: str) -> None:
    url = f"nats://{login}127.0.0.1:{server.port}"
    said = remote.qworker("queues", code=1, QWORKER_BROKER_URL=url)
    assert "refuses the login" in said
    assert "wr0ng" not in said
    assert "t0ken" not in said
    assert "Traceback" not in said
