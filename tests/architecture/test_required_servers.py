"""Tests cannot connect to a server without calling require()."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PORTS, REPOSITORY, URLS, asking


@pytest.fixture
def unrequested(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Records connections that were not requested, and clears the record, which would fail this test."""
    monkeypatch.setattr(asking, "asked", set())
    yield asking.uninvited
    asking.uninvited.clear()


@pytest.mark.parametrize("name", ["amqp", "memcached", "mongodb", "mysql", "nats", "postgresql", "redis"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_connection_without_require_is_refused(name: str, host: str, unrequested: list[str]) -> None:
    with pytest.raises(ConnectionRefusedError, match="has not called require"):
        socket.create_connection((host, PORTS[name]))
    assert unrequested[-1].startswith("rabbitmq at " if name == "amqp" else f"{name} at ")


def test_connection_of_a_c_driver_is_refused(unrequested: list[str]) -> None:
    psycopg = pytest.importorskip("psycopg", reason="the test extra installs it")
    with pytest.raises(psycopg.OperationalError, match="has not called require"):
        psycopg.connect(URLS["postgresql"])
    assert unrequested


def test_connections_in_threads_and_forked_processes_are_refused(unrequested: list[str]) -> None:
    def reach() -> bool:
        with socket.socket() as it:
            return it.connect_ex(("127.0.0.1", 6379)) == 0

    def quietly() -> None:
        reached.append(_refused(reach))

    reached: list[bool] = []
    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()
    assert reached == [True]
    assert unrequested
    child = os.fork()
    if child == 0:
        os._exit(0 if _refused(reach) else 1)
    assert os.waitpid(child, 0)[1] == 0


def _refused(reach: object) -> bool:
    try:
        reach()  # type: ignore[operator]
    except ConnectionRefusedError:
        return True
    return False


def test_required_server_is_reachable() -> None:
    asked = type(asking)(lambda: {("127.0.0.1", 6379): "redis", ("db", 5432): "postgresql"})
    asked.asked.add("redis")
    for host in ("127.0.0.1", "localhost", "::1"):
        asked.check(host, 6379)
    asked.check("elsewhere", 5432)
    with pytest.raises(ConnectionRefusedError):
        asked.check("db", 5432)
    with asked.looking():
        asked.check("db", 5432)
    assert asked.uninvited == ["postgresql at db:5432"]


def test_unrequested_connection_fails_the_test_even_if_caught(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "import contextlib, socket\n"
        "def test_reaches():\n"
        "    with contextlib.suppress(OSError):\n"
        "        socket.create_connection(('localhost', 6379))\n"
        "def test_does_not():\n"
        "    pass\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(file),
    ]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "without require(): redis at " in done.stdout
