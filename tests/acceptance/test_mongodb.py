"""Workers of MongoDB, as mongoeco plays it: what happens to messages when all goes well, and when it does
not."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite, Stream
from tests.acceptance.invariants import check
from tests.acceptance.ledger import STARTED
from tests.acceptance.mongodb_process import Mongo
from tests.acceptance.private_servers import free_port
from tests.contract.place_mongodb import database_url, mongo_client
from tests.servers import require, start_mongodb

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.fault,
    pytest.mark.more_brokers,
    pytest.mark.timeout(120),
]


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteSite]:
    server = require("mongodb")
    url = database_url(server, tmp_path)
    with RemoteSite(tmp_path, url, url, url, worker_lease_seconds=3.0) as site:
        yield site
    mongo_client(server).drop_database(url.rpartition("/")[2].partition("?")[0])


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


def test_the_server_starts_again_without_its_data(tmp_path: Path) -> None:
    with (
        closing(Mongo()) as server,
        RemoteSite(tmp_path, server.url, server.url, server.url, worker_lease_seconds=3.0) as site,
    ):
        worker = site.start()
        site.ended(site.send("work", 1))
        server.kill()
        site.until(lambda: "does not answer" in worker.log or "127.0.0.1" in worker.log, "it to notice")
        server.start()
        site.ended(site.send("work", 3))
        worker.stop()


def test_another_becomes_primary_with_work_in_flight(tmp_path: Path) -> None:
    """Under load: what was written with a majority is there, and so nothing is lost. Another has it because
    it is started on the same file; who is connected knows nothing of that."""
    require("mongodb")
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    file = ("--file", str(tmp_path / "mongo.db"), "--replica-set", "rs0")

    def member(number: int) -> subprocess.Popen[str]:
        other = addresses[1 - number]
        return start_mongodb("--port", str(ports[number]), "--member", other, *file)[0]

    url = f"mongodb://{','.join(addresses)}/test?replicaSet=rs0&connectTimeoutMS=30000"
    primary = member(0)
    try:
        with RemoteSite(tmp_path, url, url, url, worker_lease_seconds=3.0) as site:
            worker = site.start()
            go = site.path / "go"
            later = site.send("work", 1, countdown=6.0)
            running = site.send("until_file", str(go))
            site.started(running)
            stream = Stream(site)
            site.until(lambda: len(site.records(kind=STARTED)) > 20, "tasks to start")
            primary.kill()
            primary.wait()
            time.sleep(0.5)  # so long an election takes at least
            primary = member(1)
            known = len(site.sent)
            site.until(lambda: len(site.sent) > known + 20, "calls to be accepted again")
            stream.stop()
            go.touch()
            site.ended(later, site.send("work", 99))
            site.drained()
            worker.stop()
            check(site)
    finally:
        primary.kill()
        primary.wait()
