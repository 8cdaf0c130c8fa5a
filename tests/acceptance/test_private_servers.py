"""Tests of the private servers: data after a kill, freezing, and cleanup."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.acceptance.harness import REPOSITORY, until
from tests.acceptance.private_servers import PORTS, SERVERS, Server, free_port, serving
from tests.acceptance.processes import gone, state

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

SQL = ("postgres", "mariadbd")
"""Binaries of SQL servers."""


# PgBouncer needs another server, and has no data.
@pytest.fixture(params=[kind for kind in SERVERS if kind != "pgbouncer"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    with serving(request.param) as server:
        yield server


def test_killed_server_restarts_on_its_port_with_its_data(server: Server) -> None:
    url = server.url
    _write(server)
    before = server.tree()
    server.kill()
    assert all(gone(pid) for pid in before)
    assert not _listens(server)
    assert not server.answers()
    server.start()
    assert server.url == url
    assert _read(server) == "kept"
    server.stop()
    server.stop()
    assert not _listens(server)


def test_server_can_be_frozen_and_thawed(server: Server) -> None:
    server.freeze()
    assert {state(pid) for pid in server.tree()} <= {"T", "Z"}
    assert _listens(server), "the kernel still takes connections for it"
    server.thaw()
    server.wait()
    assert "T" not in {state(pid) for pid in server.tree()}


def test_close_leaves_no_process_and_no_data(server: Server) -> None:
    pids = server.tree()
    server.freeze()
    server.close()
    server.close()
    assert all(gone(pid) for pid in pids)
    assert not server.directory.exists()


def test_server_dies_with_the_process_that_started_it() -> None:
    """Even a killed test leaves no server behind."""
    script = (
        "from tests.acceptance.private_servers import *\nimport os, signal\n"
        "server = PostgreSQL()\nprint(*server.tree(), server.directory, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with serving("postgresql"):
        pass  # skipped here without PostgreSQL
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    *pids, directory = done.stdout.split()
    try:
        until(lambda: all(gone(int(pid)) for pid in pids), "the server to go", seconds=15)
        assert len(pids) > 3
    finally:
        shutil.rmtree(directory)


def test_ports_are_not_ephemeral() -> None:
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        first, last = map(int, file.read().split())
    assert not set(PORTS) & set(range(first, last + 1))
    assert free_port() in PORTS


def test_server_that_does_not_start_reports_its_log() -> None:
    with pytest.raises(AssertionError, match="Bad directive or wrong number of "
                                             "arguments"), serving("redis", nonsense="x"):  # fmt: skip
        pass


def _listens(server: Server) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), 2.0):
        return True
    return False


def _write(server: Any) -> None:
    if server.binary == "redis-server":
        server.do("SET", "name", "kept")
    elif server.binary in SQL:
        server.do("CREATE TABLE name AS SELECT 'kept' AS value")
    else:
        server.do("add_vhost", "kept")


def _read(server: Any) -> str:
    if server.binary == "redis-server":
        return str(server.do("GET", "name").decode())
    if server.binary in SQL:
        return str(server.do("SELECT value FROM name")[0][0])
    return "kept" if "kept" in server.do("list_vhosts").split() else ""
