"""Early-acked tasks whose ack confirmations get lost, and claims that a crash of PostgreSQL undoes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.ledger import STARTED
from tests.acceptance.private_servers import PostgreSQL, serving

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("answers", ["lost", "cut"])
def test_early_acked_tasks_end_even_if_the_confirmation_is_lost(
    broken: Broken, remote: RemoteSite, answers: str
) -> None:
    """None runs twice, none stays PENDING: tasks with confirmed acks run, and those given up have failed."""
    worker = remote.start("-c", "3")
    ids = remote.send_many("once", [(number, 0.01) for number in range(300)])
    remote.until(lambda: len(remote.records(kind=STARTED)) > 10, "the first to run")
    for _ in range(12):
        if answers == "lost":
            broken.proxy.down.lost = True
            time.sleep(0.05)
        broken.proxy.cut()
        broken.proxy.heal()
        time.sleep(0.3)
    remote.until(lambda: not remote.pending(), "every call to have ended", 60.0)
    runs = Counter(record.id for record in remote.records(kind=STARTED))
    assert max(runs.values()) == 1
    states = remote.states()
    assert {id for id in ids if states[id] == "SUCCESS"} == runs.keys()
    assert {states[id] for id in set(ids) - runs.keys()} <= {"FAILURE"}
    assert worker.alive
    assert remote.waiting() == 0


@pytest.mark.parametrize("whole", [True, False], ids=["server", "one of its processes"])
def test_claims_lost_in_a_postgresql_crash_do_not_repeat_tasks(
    tmp_path_factory: pytest.TempPathFactory, whole: bool
) -> None:
    """With two workers: one must not take the other's messages, although the server has lost the claims.
    The WAL writer is slowed down so that more is lost."""
    path = tmp_path_factory.mktemp("site")
    with (
        serving("postgresql", PostgreSQL, wal_writer_delay="2s") as server,
        RemoteSite(path, server.url, server.url) as site,
    ):
        workers = [site.start("-c", "2") for _ in range(2)]
        site.send_many("work", [(number, 0.05) for number in range(200)])
        began = len(site.records(kind=STARTED))
        site.until(lambda: len(site.records(kind=STARTED)) > began + 30, "the first to run")
        if whole:
            server.kill()
            server.start()
        else:
            _kill_a_backend(server)
            site.until(server.answers, "the server to recover")
        site.drained(60.0)
        runs = Counter(record.id for record in site.records(kind=STARTED))
        assert runs.keys() >= site.sent.keys()
        assert max(runs.values()) == 1
        assert all(worker.alive for worker in workers)


def _kill_a_backend(server: PostgreSQL) -> None:
    """kill -9 of one backend: the server restarts all others and loses what was not flushed."""
    ((pid,),) = server.do("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> "
                          "pg_backend_pid() LIMIT 1")  # fmt: skip
    os.kill(pid, signal.SIGKILL)
