"""A spool server on its own sockets, and misbehaving clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qworker.spooler.files.packet import decode
from qworker.spooler.files.writing import Writer
from qworker.spooler.network.framing import Limits
from qworker.spooler.network.peers import Access, UnixAddress, parse_address
from qworker.spooler.network.server import SpoolServer
from tests.support.spools import files

PATIENCE = 30.0
EVERYWHERE = ("127.0.0.1:0", "socket", "@")
"""One of each kind of address. The second is in the directory of the test; the third gets a unique name."""


class Served:
    """A server of the spool directory *place*, on one address. crashed: the error that ended its thread."""

    def __init__(self, path: Path, kind: str, limits: Limits | None, access: Access | None) -> None:
        address = {"socket": str(path / "socket"), "@": f"@{path}"}.get(kind, kind)
        self.place = path / "jobs"
        self.crashed: list[BaseException] = []
        self.server = SpoolServer(
            [address],
            [Writer(self.place), Writer(path / "other")],
            limits=limits,
            access=access,
            on_crash=lambda _, error: self.crashed.append(error),
        )
        self.server.start()
        (self.address,) = self.server.addresses

    def connect(self) -> socket.socket:
        target = parse_address(self.address)
        is_unix = isinstance(target, UnixAddress)
        client = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        client.settimeout(PATIENCE)
        client.connect(target.sockaddr if isinstance(target, UnixAddress) else tuple(target))
        return client

    def exchange(self, request: bytes) -> bytes:
        """Send bytes on a new connection; return the answer until the server closes it."""
        with self.connect() as client:
            return talk(client, request)

    def jobs(self) -> list[tuple[dict[bytes, bytes], bytes]]:
        """Pairs and bodies of all jobs, unordered."""
        return [tuple(decode((self.place / name).read_bytes())) for name in files(self.place)]  # type: ignore[misc]


def talk(client: socket.socket, request: bytes) -> bytes:
    try:
        client.sendall(request)
    except OSError:
        pass  # the server has already closed the connection
    return rest(client)


def rest(client: socket.socket) -> bytes:
    """Everything the server sends until it closes the connection."""
    answer = b""
    while True:
        try:
            part = client.recv(65536)
        except ConnectionError:
            return answer
        if not part:
            return answer
        answer += part


@contextmanager
def served(
    path: Path, kind: str = EVERYWHERE[0], *, limits: Limits | None = None, access: Access | None = None
) -> Iterator[Served]:
    found = Served(path, kind, limits, access)
    try:
        yield found
    finally:
        found.server.stop()
        assert found.server.join(PATIENCE)
        assert not found.crashed
