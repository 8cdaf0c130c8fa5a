"""SignalSocket: receives signals of other processes, such as web servers, for the spooler of a directory.

Comes from:  ``uwsgi_api`` in any process of the machine, through send().
Goes to:     the runner's thread, which waits on fileno().
Thread:      the runner's; send() from any.

A datagram of one byte is a signal. Whoever can write to the spool directory may send one; it only runs the
handler that the application registered. Other datagrams are discarded.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from qworker.errors import SpoolError
from qworker.spooler.uwsgi.runtime import STATE, state_place

_ENDING = ".signals"
_AT_ONCE = 256
"""Maximum datagrams read at a time, so that a fast sender does not block the runner."""
PATIENCE = 1.0
"""Seconds that send() waits for room."""


class SignalSocket:
    """Receives the signals for the spooler of *directory*. SpoolError when it cannot be created."""

    def __init__(self, directory: str | os.PathLike[str], pid: int | None = None) -> None:
        place = state_place(directory)
        name = f"{os.getpid() if pid is None else pid}{_ENDING}"
        self._path = f"{place}/{name}"
        _sweep(place)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            with _short(place, name) as address:
                self._socket.bind(address)
            os.chmod(self._path, stat.S_IMODE(os.stat(directory).st_mode) & 0o666)
        except OSError as error:
            self._socket.close()
            raise SpoolError(f"no signals can be received at {self._path}: {error}") from error

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is a signal."""
        return self._socket.fileno()

    def read(self) -> list[int]:
        """Return the received signals, in order. Never waits."""
        found = []
        for _ in range(_AT_ONCE):
            try:
                data = self._socket.recv(2)
            except OSError:
                break
            if len(data) == 1:
                found.append(data[0])
        return found

    def close(self) -> None:
        """Safe to call twice."""
        if self._socket.fileno() >= 0:
            self._socket.close()
            with suppress(OSError):
                os.unlink(self._path)


def send(directory: str | os.PathLike[str], signum: int) -> bool:
    """Send a signal to the first spooler of *directory* that accepts it. Return whether one did."""
    place = os.path.join(directory, STATE)
    return any(_send(place, name, bytes((signum,))) for name in _names(place))


def _send(place: str, name: str, data: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(PATIENCE)
        try:
            with _short(place, name) as address:
                sender.sendto(data, address)
        except OSError:  # nobody listens any more, or the socket is full
            return False
    return True


def _sweep(place: str) -> None:
    """Remove the sockets of dead processes."""
    for name in _names(place):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            probe.settimeout(PATIENCE)
            try:
                with _short(place, name) as address:
                    probe.connect(address)
            except ConnectionRefusedError:
                with suppress(OSError):
                    os.unlink(f"{place}/{name}")
            except OSError:
                pass


def _names(place: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(place) if name.endswith(_ENDING))
    except OSError:
        return []


@contextmanager
def _short(place: str, name: str) -> Iterator[str]:
    """Yield an address of the socket *name*: such a path is limited to about a hundred bytes."""
    if len(os.fsencode(f"{place}/{name}")) < 100:
        yield f"{place}/{name}"
        return
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)
