"""A store that loses its data under a running worker: deleted, flushed, dropped and made again, with its
numbers from one.

What was lost with the store is lost. What comes after it must run, and have a state: the worker's memory of
old messages must not stand in the way of new ones that were given the same numbers.
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


def _outlive(site: Site, lose: Callable[[], Any]) -> str:
    """Lose the store while tasks run and others wait to run; then all that is sent must end. Return the
    log."""
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


def test_the_file_is_deleted(site: Site) -> None:
    def lose() -> None:
        site.client.close()
        for path in site.path.glob("broker.db*"):
            if path.is_file():
                path.unlink()

    _outlive(site, lose)


def test_the_file_is_moved_away_without_its_log_and_back(site: Site) -> None:
    """Nobody makes a new file beside the old log meanwhile, which would overwrite what was committed."""
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
def test_redis_is_flushed(remote: RemoteSite, broken: Broken) -> None:
    log = _outlive(remote, lambda: broken.server.do("FLUSHALL"))
    assert "its data was deleted or replaced; tasks that had not started are left to other workers" in log


@pytest.mark.parametrize("broken", ["postgresql"], indirect=True)
@pytest.mark.parametrize("how", ["truncated", "dropped"])
def test_the_tables_are_made_anew(remote: RemoteSite, broken: Broken, how: str) -> None:
    tables = "qworker_message, qworker_dead, qworker_owner, qworker_revoked"

    def lose() -> None:
        if how == "truncated":
            broken.server.do(f"TRUNCATE {tables} RESTART IDENTITY")
        else:
            broken.server.do(f"DROP TABLE {tables}, qworker_schema")

    _outlive(remote, lose)
