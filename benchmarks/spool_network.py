"""Jobs over the network: how many a second a spool server takes, ours and uWSGI's, from 1 and 4 clients.

Each client is a process that speaks uWSGI's plain protocol, one connection a packet, to both alike. Nobody
works the jobs off meanwhile. Run it alone with `python -m benchmarks.spool_network`, which prints the medians
and the ratios.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qworker.spooler.files.packet import encode
from qworker.spooler.network.framing import ENQUEUED

PACKET = encode({"id": 1, "name": "job", "to": "somebody@example.com", "size": 12345})
PATIENCE_SECONDS = 30.0
OURS = """
import signal, sys
from qworker.spooler import Writer
from qworker.spooler.network import SpoolServer
server = SpoolServer(sys.argv[2:], [Writer(sys.argv[1])])
server.start()
signal.pause()
"""
THEIRS = """
import sys, pyuwsgi
pyuwsgi.run(["--master", "--need-app=0", "--workers=1", "--listen=100", "--disable-logging",
             "--spooler-external=" + sys.argv[1], *("--socket=" + address for address in sys.argv[2:])])
"""
SERVERS = {"qworker": OURS, "uwsgi": THEIRS}
Address = str | tuple[str, int]


def enqueue(address: Address, number: int, clients: int) -> float:
    """Jobs a second, when so many clients send *number* packets together, each its part."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(clients + 1)
    processes = [
        context.Process(target=_send, args=(address, number // clients, barrier)) for _ in range(clients)
    ]
    for process in processes:
        process.start()
    barrier.wait(PATIENCE_SECONDS)
    begun = time.perf_counter()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a client ended with {process.exitcode}")
    return number // clients * clients / (time.perf_counter() - begun)


def _send(address: Address, number: int, barrier: object) -> None:
    barrier.wait(PATIENCE_SECONDS)  # type: ignore[attr-defined]
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    for _ in range(number):
        with socket.socket(family, socket.SOCK_STREAM) as client:
            _connect(client, address)
            client.sendall(PACKET)
            answer = client.recv(4)
        if answer != ENQUEUED:
            raise RuntimeError(f"refused: {answer!r}")


def _connect(client: socket.socket, address: Address) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.connect(address)
            return
        except BlockingIOError:  # so many wait on a UNIX socket already
            if time.monotonic() > deadline:
                raise
            time.sleep(0.0001)


@contextmanager
def running(server: str, directory: Path) -> Iterator[dict[str, Address]]:
    """One of SERVERS, in a process of its own, with "spool" in *directory* to write to; its addresses."""
    spool, path = directory / "spool", str(directory / "socket")
    spool.mkdir(mode=0o750)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    addresses: dict[str, Address] = {"tcp": ("127.0.0.1", port), "unix": path}
    arguments = [str(spool), f"127.0.0.1:{port}", path]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVERS[server], *arguments], stdout=log, stderr=log, cwd=directory
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(map(_listens, addresses.values())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{server} does not listen: {(directory / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield addresses
    finally:
        process.kill()
        process.wait()


def _listens(address: Address) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
    return True


def measure(server: str, kind: str, clients: int, number: int, place: str | None = None) -> float:
    """Jobs a second of one of SERVERS, over "tcp" or "unix", with a spool directory in *place*."""
    directory = Path(tempfile.mkdtemp(dir=place))
    try:
        with running(server, directory) as addresses:
            enqueue(addresses[kind], 200, clients)  # so that it has done each thing once
            rate = enqueue(addresses[kind], number, clients)
        written = sum(len(names) for _, _, names in os.walk(directory / "spool"))
        if written < number // clients * clients:
            raise RuntimeError(f"{server} has written {written} of {number} jobs")
        return rate
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--place", default="/dev/shm" if os.path.isdir("/dev/shm") else None)
    options = parser.parse_args()
    for kind in ("tcp", "unix"):
        for clients in (1, 4):
            rates: dict[str, list[float]] = {server: [] for server in SERVERS}
            for _ in range(options.runs):  # in turns, so that both meet the same machine
                for server, found in rates.items():
                    found.append(measure(server, kind, clients, options.number, options.place))
            ours, theirs = (statistics.median(rates[name]) for name in ("qworker", "uwsgi"))
            compared = f"qworker {ours:,.0f}/s, uwsgi {theirs:,.0f}/s: {ours / theirs:.2f}x"
            print(f"{kind}, {clients} clients: {compared}")


if __name__ == "__main__":
    main()
