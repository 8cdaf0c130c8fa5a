"""A broker that loses its data while a worker runs: deleted, flushed, or dropped and recreated, with
message numbers starting at 1 again.

The lost messages are lost. New messages must run and have a state: what the worker remembers of old
messages must not affect new ones with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from qworker.errors import BrokerUnavailable, QWorkerError
from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.harness import Site
from tests.acceptance.ledger import STARTED

pytestmark = [pytest.mark.acceptance, pytest.mark.fault]

MANY = 40


def _survive(site: Site, lose: Callable[[], Any]) -> str:
    """Lose the data while tasks run and others wait; everything sent afterwards must end. Returns the log."""
    worker = site.start()
    site.finished(*site.send_many("work", [(number,) for number in range(5)]))
    running = site.send_many("work", [(number, 1.5) for number in range(MANY)])
    site.until(lambda: len(site.records(kind=STARTED)) >= 7, "two tasks to run")
    lose()
    site.until(lambda: _sent(site), "the store to take calls again")
    ids = site.send_many("work", [(number, 0.01) for number in range(MANY)])
    site.finished(*ids)
    assert len(running) == MANY
    worker.stop()
    assert "Traceback" not in worker.log
    assert "was silent for" not in worker.log
    return worker.log


def _sent(site: Site) -> str | None:
    with suppress(QWorkerError):
        return site.client.send_task("work", (0,)).id
    return None


def test_deleted_database_file(site: Site) -> None:
    def lose() -> None:
        site.client.close()
        for path in site.path.glob("broker.db*"):
            if path.is_file():
                path.unlink()

    _survive(site, lose)


def test_file_moved_away_without_its_wal_and_back(site: Site) -> None:
    """No new file is created beside the old WAL, which would overwrite committed data."""
    worker = site.start()
    ids = site.send_many("work", [(number, 0.02) for number in range(200)])
    site.until(lambda: len(site.records(kind=STARTED)) >= 20, "some tasks to run")
    file, away = site.path / "broker.db", site.path / "away.db"
    file.rename(away)
    with pytest.raises(BrokerUnavailable, match="restore the file"):
        site.client.send_task("work", (0,))
    site.until(lambda: "restore the file" in worker.log, "the worker to say what is wrong")
    away.rename(file)
    site.finished(*ids)
    worker.stop()
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("broken", ["redis"], indirect=True)
def test_flushed_redis(remote: RemoteSite, broken: Broken) -> None:
    log = _survive(remote, lambda: broken.server.do("FLUSHALL"))
    assert "its data was deleted or replaced; tasks that had not started are left to other workers" in log


@pytest.mark.parametrize("broken", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["truncated", "dropped"])
def test_truncated_or_dropped_tables(remote: RemoteSite, broken: Broken, how: str) -> None:
    tables = "qworker_message, qworker_dead, qworker_owner, qworker_revoked"

    def lose() -> None:
        if how == "truncated":
            broken.server.do(f"TRUNCATE {tables} RESTART IDENTITY")
        else:
            broken.server.do(f"DROP TABLE {tables}, qworker_schema")

    _survive(remote, lose)
