"""Workers of MongoDB, as mongoeco plays it: what happens to messages when all goes well, and when it does
not."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite
from tests.acceptance.harness import REPOSITORY
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.together import repeated
from tests.contract.place_mongodb import database_url, mongo_client
from tests.servers import require, start_mongodb

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteSite]:
    server = require("mongodb")
    url = database_url(server, tmp_path)
    with RemoteSite(tmp_path, url, url, url, worker_lease_seconds=3.0) as site:
        yield site
    mongo_client(server).drop_database(url.rpartition("/")[2].partition("?")[0])


def qworker(site: RemoteSite, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "qworker", *words],
        cwd=REPOSITORY,
        env=site.environment(app="tests.acceptance.fault_tasks:app"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_happens(remote: RemoteSite) -> None:
    worker = remote.start()
    remote.send_many("work", [(number,) for number in range(30)])
    for number in range(3):
        remote.send("work", number, countdown=1.5)
        remote.send("flaky", 2)
        remote.send("once", number)
    remote.drained()
    worker.stop()
    check(remote)
    per_id = [len(remote.records(id, STARTED)) for id in remote.sent if remote.sent[id][0] != "flaky"]
    assert per_id == [1] * len(per_id)
    assert worker.log.count("ERROR") == worker.log.count("WARNING") == 0, worker.log
    assert set(remote.states().values()) == {"SUCCESS"}


def test_a_killed_worker_has_its_messages_redelivered(remote: RemoteSite) -> None:
    first = remote.start()
    go = remote.path / "go"
    ids = [remote.send("until_file", str(go)) for _ in range(2)]
    remote.started(*ids)
    first.kill()
    second = remote.start(name="two")
    remote.started(*ids, times=2)
    go.touch()
    remote.drained()
    second.stop()
    check(remote)
    assert repeated(remote) == 2


@pytest.mark.slow
def test_what_is_given_up_is_a_dead_letter(remote: RemoteSite) -> None:
    """Each attempt kills the child that runs it."""
    worker = remote.start()
    id = remote.send("misbehave", "kill")
    remote.until(lambda: id in remote.dead(), "the task to be given up")
    (letter,) = json.loads(qworker(remote, "dead", "list", "--json"))
    assert letter["queue"] == "celery"
    worker.stop()
    check(remote)
    qworker(remote, "dead", "retry", "--all")
    assert remote.dead() == {}
    (row,) = json.loads(qworker(remote, "queues", "--json"))
    assert (row["ready"], row["dead"]) == (1, 0)


def test_the_command_line(remote: RemoteSite, tmp_path: Path) -> None:
    assert "are empty" in qworker(remote, "queues")
    remote.send_many("work", [(number,) for number in range(7)])
    remote.send("work", 1, countdown=300)
    (row,) = json.loads(qworker(remote, "queues", "--json"))
    assert (row["queue"], row["ready"], row["delayed"]) == ("celery", 7, 1)
    assert "in order" in qworker(remote, "config", "check")
    file = f"sqlite:///{tmp_path}/moved.db"
    mongo = str(remote.environment()["QWORKER_BROKER_URL"])
    qworker(remote, "move", mongo, file, "--yes")
    with closing(sqlite3.connect(tmp_path / "moved.db")) as connection:
        assert connection.execute("SELECT count(*) FROM message").fetchone() == (8,)
    assert "are empty" in qworker(remote, "queues")
    qworker(remote, "move", file, mongo, "--yes")
    assert "8" in qworker(remote, "purge", "--yes")


@pytest.mark.parametrize("keeps", [True, False], ids=["with-its-data", "without"])
def test_the_server_starts_again(tmp_path: Path, keeps: bool) -> None:
    require("mongodb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ["--port", port, *(["--file", str(tmp_path / "mongo.db")] if keeps else [])]
    process, url = start_mongodb(*options)
    try:
        with RemoteSite(tmp_path, url, url, url, worker_lease_seconds=3.0) as site:
            worker = site.start()
            site.ended(site.send("work", 1))
            later = site.send("work", 2, countdown=6.0) if keeps else None
            process.kill()
            process.wait()
            site.until(lambda: "does not answer" in worker.log or "127.0.0.1" in worker.log, "it to notice")
            process, _ = start_mongodb(*options)
            site.ended(site.send("work", 3))
            if later is not None:
                site.ended(later)
            worker.stop()
    finally:
        process.kill()
        process.wait()
