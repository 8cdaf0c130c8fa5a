"""Real uWSGI at the other end of a socket, as sender and as receiver."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from qworker.errors import SpoolError
from qworker.spooler.files.packet import encode
from qworker.spooler.network import send, spool_to
from qworker.spooler.network.framing import ENQUEUED, REFUSED
from qworker.spooler.watching.directory import SpoolDirectory
from tests.support.spool_servers import served
from tests.support.spools import files, work_off
from tests.support.waiting import until

pytest.importorskip("pyuwsgi", reason="a real uWSGI: `pip install pyuwsgi`")

pytestmark = [pytest.mark.compat, pytest.mark.timeout(120)]

CONSUMER = """
    import os, uwsgi

    def spooler(pairs):
        log = os.open("{log}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, repr(sorted((str(k), v) for k, v in pairs.items() if k != "spooler_task_name")).encode() + b"\\n")
        os.close(log)
        return uwsgi.SPOOL_OK

    uwsgi.spooler = spooler
"""  # noqa: E501
Start = Callable[..., None]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a uWSGI with these options and optionally a script."""
    started: list[subprocess.Popen[bytes]] = []

    def do(*options: str, script: str = "") -> None:
        if script:
            file = tmp_path / "script.py"
            file.write_text(textwrap.dedent(script))
            options = (*options, f"--shared-import={file}")
        code = "import sys, pyuwsgi; pyuwsgi.run(sys.argv[1:])"
        with (tmp_path / "log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", code, "--master", "--need-app=0", *options],
                    cwd=tmp_path,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    yield do
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def listens(address: str | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


def say(log: Path) -> Callable[[], str]:
    return lambda: f"uWSGI says: {log.read_text(errors='replace')[-3000:]}"


@pytest.mark.parametrize("kind", ["127.0.0.1:0", "socket"])
def test_jobs_from_the_uwsgi_router_are_received(tmp_path: Path, start: Start, kind: str) -> None:
    port = free_port()
    with served(tmp_path, kind) as here:
        start(f"--http=127.0.0.1:{port}", f"--http-to={here.address}", "--http-modifier1=17")
        until(lambda: listens(("127.0.0.1", port)), say=say(tmp_path / "log"))
        for number in range(3):
            client = HTTPConnection("127.0.0.1", port, timeout=30)
            client.request("GET", f"/job?n={number}")
            client.sock.recv(4)  # the answer of a spooler is not HTTP
            client.close()
        until(lambda: len(files(here.place)) == 3, say=say(tmp_path / "log"))
        directory = SpoolDirectory(here.place)
        found = [pairs[b"QUERY_STRING"] for pairs in work_off(directory)]
        directory.close()
        assert sorted(found) == [b"n=0", b"n=1", b"n=2"]


@pytest.fixture
def uwsgi(tmp_path: Path, start: Start) -> tuple[str, str, Path, Path]:
    """A uWSGI with a spooler: its addresses, its directory, and the log of its jobs."""
    place, log = tmp_path / "spool", tmp_path / "runs"
    place.mkdir()
    path, port = str(tmp_path / "socket"), free_port()
    start(
        f"--socket={path}",
        f"--socket=127.0.0.1:{port}",
        "--workers=1",
        f"--spooler={place}",
        "--spooler-frequency=1",
        script=CONSUMER.format(log=log),
    )
    until(lambda: listens(path) and listens(("127.0.0.1", port)), say=say(tmp_path / "log"))
    return path, f"127.0.0.1:{port}", place, log


def test_uwsgi_receives_our_jobs(tmp_path: Path, uwsgi: tuple[str, str, Path, Path]) -> None:
    path, tcp, place, log = uwsgi
    assert send(path, {"id": "unix", b"\xff": 1}) is None
    assert send(tcp, {"id": "tcp"}, spooler=place) is None
    spool_to(tcp, {"id": "body", "body": "a pair"})
    assert send(tcp, {"id": "later"}, at=1_900_000_000.5) is None

    def runs() -> list[str]:
        return sorted(log.read_text().splitlines()) if log.exists() else []

    until(lambda: len(runs()) == 3, say=say(tmp_path / "log"))
    for expected in ("b'unix'", "b'tcp'", "b'a pair'"):
        assert any(expected in line for line in runs())
    (later,) = files(place)
    assert os.stat(place / later).st_mtime == 1_900_000_001


def test_jobs_that_uwsgi_refuses_raise_spool_error(
    tmp_path: Path, uwsgi: tuple[str, str, Path, Path]
) -> None:
    path, tcp, _, _ = uwsgi
    with pytest.raises(SpoolError, match="refused the job"):
        send(tcp, {"id": "x"}, spooler="/nowhere")
    with pytest.raises(SpoolError, match="buffer-size"):
        send(path, {"id": "x" * 5000})
    with pytest.raises(SpoolError, match="not a server of qworker"):
        send(tcp, {"id": "x"}, b"body")


@pytest.mark.parametrize(
    "pairs",
    [{}, {"spooler": ""}, {"priority": ""}, {"at": ""}, {"at": "0"}, {"at": "5.9"}, {"spooler": "/x"}],
    ids=str,
)
def test_empty_options_get_the_same_answer(
    tmp_path: Path, uwsgi: tuple[str, str, Path, Path], pairs: dict[str, str]
) -> None:
    """From uWSGI and from our server."""
    answers = []
    (tmp_path / "ours").mkdir()
    with served(tmp_path / "ours") as here:
        for address in (uwsgi[1], here.address):
            host, _, port = address.partition(":")
            with socket.create_connection((host, int(port)), timeout=30) as client:
                client.sendall(encode({"id": "x", **pairs}))
                answers.append(client.recv(4))
    assert answers[0] == answers[1]
    assert answers[0] == (REFUSED if pairs.get("spooler") else ENQUEUED)
