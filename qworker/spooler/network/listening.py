"""Sockets that take connections: made so that nobody can connect who may not, and removed afterwards.

Comes from:  ``server``, at its start.
Goes to:     listening sockets.
Thread:      whichever starts and ends the server.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

from qworker.errors import ConfigurationError
from qworker.spooler.network.addresses import TcpAddress, UnixAddress, parse_address, resolved
from qworker.spooler.network.peers import Access

BACKLOG = 1024
"""Connections that the system keeps until they are taken."""
PROBE_SECONDS = 1.0


@dataclass(frozen=True)
class Listener:
    """file: device and inode of a UNIX socket that has a path; process: which made it."""

    socket: socket.socket
    address: TcpAddress | UnixAddress
    file: tuple[int, int] | None = None
    process: int = 0

    @property
    def is_tcp(self) -> bool:
        return isinstance(self.address, TcpAddress)

    def close(self) -> None:
        """Stop listening, and remove the path, unless it is another's by now."""
        self.socket.close()
        if self.file is not None and self.process == os.getpid():
            with suppress(OSError):
                found = os.lstat(str(self.address))
                if (found.st_dev, found.st_ino) == self.file:
                    os.unlink(str(self.address))


def listen(text: str, access: Access) -> Listener:
    """Listen on an address. The port 0 takes any that is free, and the listener's address says which.

    ConfigurationError when it cannot be, or when strangers could reach it.
    """
    address = parse_address(text)
    try:
        if isinstance(address, TcpAddress):
            return _tcp(address, access)
        return _unix(address, access)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {address}: {error.strerror or error}; is another spooler there, and may this "
            "user?"
        ) from None


def _tcp(address: TcpAddress, access: Access) -> Listener:
    family, sockaddr, ip = resolved(address)
    access.check_listening(ip, address)
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(sockaddr)
        _open(listening)
    except BaseException:
        listening.close()
        raise
    return Listener(listening, TcpAddress(address.host, listening.getsockname()[1]))


def _unix(address: UnixAddress, access: Access) -> Listener:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if address.abstract:
            listening.bind(address.sockaddr)
            _open(listening)
            return Listener(listening, address)
        _remove_stale(address)
        listening.bind(address.sockaddr)
        # Nobody can connect before it listens, so nobody can before its mode is right.
        os.chmod(address.name, 0o666 if access.for_others else 0o600)
        found = os.lstat(address.name)
        _open(listening)
    except BaseException:
        listening.close()
        raise
    return Listener(listening, address, (found.st_dev, found.st_ino), os.getpid())


def _open(listening: socket.socket) -> None:
    listening.listen(BACKLOG)
    listening.setblocking(False)


def _remove_stale(address: UnixAddress) -> None:
    """Remove a socket that nobody listens on any more."""
    try:
        mode = os.lstat(address.name).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{address} is there and is not a socket: name another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(address.sockaddr)
        except ConnectionRefusedError:
            os.unlink(address.name)
            return
        except TimeoutError:
            pass  # it has so many connections that they wait
    raise ConfigurationError(f"somebody listens on {address} already: stop that, or name another path")
