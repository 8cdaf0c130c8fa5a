"""Workers on MongoDB, played by mongoeco, with and without faults."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.acceptance.brokers import RemoteSite
from tests.acceptance.mongodb_process import Mongo
from tests.acceptance.private_servers import free_port
from tests.acceptance.together import everything_runs_exactly_once, killed_server_loses_nothing
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


def test_everything_runs_once_without_faults(remote: RemoteSite) -> None:
    everything_runs_exactly_once(remote, calls=30, later=1.5)


def test_server_restarts_without_its_data(tmp_path: Path) -> None:
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


def test_failover_to_another_primary_under_load(tmp_path: Path) -> None:
    """Writes with majority concern survive, so nothing is lost. The new primary has them because it is
    started on the same file; clients do not notice that."""
    require("mongodb")
    ports = [free_port(), free_port()]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    file = ("--file", str(tmp_path / "mongo.db"), "--replica-set", "rs0")

    def member(number: int) -> subprocess.Popen[str]:
        other = addresses[1 - number]
        return start_mongodb("--port", str(ports[number]), "--member", other, *file)[0]

    url = f"mongodb://{','.join(addresses)}/test?replicaSet=rs0&connectTimeoutMS=30000"
    members = [member(0)]

    def end() -> None:
        members[-1].kill()
        members[-1].wait()

    try:
        with RemoteSite(tmp_path, url, url, url, worker_lease_seconds=3.0) as site:
            # No primary exists for at least as long as an election takes.
            killed_server_loses_nothing(site, end, lambda: members.append(member(1)))
    finally:
        end()
