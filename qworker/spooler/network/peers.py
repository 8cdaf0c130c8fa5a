"""Access: which clients may send jobs, and which must sign them.

    UNIX sockets    the users whose ids are allowed; by default the server's own and root
    TCP             this machine, and the networks that are named. With a key everything that comes over TCP
                    must be signed, and then it may come from anywhere unless networks are named

Sending a job runs code, so an address that other machines can reach needs a list of networks or a key. Every
user of this machine can reach its loopback.

Comes from:  options.
Goes to:     ``server``, which checks each address and each peer.
Thread:      any; immutable.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.safe_repr import safe_repr

_CREDENTIALS = struct.Struct("3i")
_SO_PEERCRED: int | None = getattr(socket, "SO_PEERCRED", None)
SHORTEST_KEY = 16
"""Minimum bytes of a key."""


@dataclass(frozen=True)
class Access:
    """networks: as 10.0.0.0/8 or 192.0.2.7; this machine's loopback is always allowed. users: user ids that
    may connect to UNIX sockets; None: our own and root. key: signs jobs; `read_key()` reads one. older_keys:
    also accepted.

    ConfigurationError when one of them is invalid.
    """

    networks: tuple[str, ...] = ()
    users: Collection[int] | None = None
    key: bytes | None = field(default=None, repr=False)
    older_keys: tuple[bytes, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for network in self.networks:
            try:
                _network(network)
            except ValueError as error:
                raise ConfigurationError(
                    f"{safe_repr(network)} is not a network, such as 10.0.0.0/8 or 192.0.2.7: {error}"
                ) from None
        if self.key is not None and len(self.key) < SHORTEST_KEY:
            raise ConfigurationError(
                f"the key has {len(self.key)} bytes: use at least {SHORTEST_KEY}, chosen at random"
            )
        if _SO_PEERCRED is None and self.for_others:
            raise ConfigurationError(
                "this system does not identify clients of a UNIX socket, so no other users can be allowed"
            )

    @property
    def for_others(self) -> bool:
        """Return whether users may connect who could not if the socket had the mode 0600."""
        return self.users is not None and not set(self.users) <= {os.getuid(), 0}

    def check_listening(self, ip: IPv4Address | IPv6Address, address: object) -> None:
        """Raise ConfigurationError when *address* would be open to unauthorized clients."""
        if not ip.is_loopback and not self.networks and self.key is None:
            raise ConfigurationError(
                f"{address} can be reached from other machines, and sending a job runs code: listen on "
                "127.0.0.1, or name the networks that may send, or give a key"
            )

    def allows_ip(self, host: str) -> bool:
        """Return whether clients at the address *host* may send."""
        ip = bare_ip(host)
        if ip.is_loopback or (self.key is not None and not self.networks):
            return True
        return any(ip in _network(network) for network in self.networks)

    def allows_user(self, connection: socket.socket) -> bool:
        """Return whether the client of a UNIX socket may send."""
        if _SO_PEERCRED is None:
            return True  # the socket's mode has already decided
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERCRED, _CREDENTIALS.size)
        user = _CREDENTIALS.unpack(data)[1]
        return user in ((os.getuid(), 0) if self.users is None else self.users)


@cache
def _network(text: str) -> IPv4Network | IPv6Network:
    return ip_network(text)


# -- Addresses, as written by users and as used by the system --
# - host:port, [v6]:port: TCP; *:port is every network.
# - :port: TCP on the loopback, 127.0.0.1.
# - @name: an abstract UNIX socket, on Linux only.
# - path: a UNIX socket; it has a slash, or no colon.
# Thread: any; stateless. Host names are looked up.

LOOPBACK = "127.0.0.1"
_PATH_BYTES = 107
"""Maximum bytes of the path of a UNIX socket on Linux."""


class TcpAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """abstract: *name* is not the path of a file."""

    name: str
    abstract: bool

    def __str__(self) -> str:
        return f"@{self.name}" if self.abstract else self.name

    @property
    def sockaddr(self) -> bytes:
        return (b"\0" if self.abstract else b"") + os.fsencode(self.name)


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Parse an address. ConfigurationError when it is invalid."""
    if text.startswith("@"):
        if sys.platform != "linux":
            raise ConfigurationError(
                f"only Linux has abstract sockets, such as {safe_repr(text)}: name a path"
            )
        return _fitting(UnixAddress(text[1:], True), text)
    host, colon, port = text.rpartition(":")
    if "/" in text or not colon:
        return _fitting(UnixAddress(text, False), text)
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535):
        raise ConfigurationError(
            f"{safe_repr(text)} is not an address: a port is a number up to 65535, as in 127.0.0.1:3031; "
            "write a UNIX socket of that name as ./NAME"
        )
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if "\0" in bare or (":" in bare and bare is host):
        raise ConfigurationError(f"{safe_repr(text)} is not an address: write [::1]:3031, with brackets")
    return TcpAddress({"": LOOPBACK, "*": "0.0.0.0"}.get(bare, bare), int(port))


def _fitting(address: UnixAddress, text: str) -> UnixAddress:
    if not address.name or "\0" in address.name or len(address.sockaddr) > _PATH_BYTES:
        raise ConfigurationError(
            f"{safe_repr(text, 200)} is not a UNIX socket: its path has 1 to {_PATH_BYTES} bytes, without NUL"
        )
    return address


def resolved(address: TcpAddress) -> tuple[socket.AddressFamily, tuple[Any, ...], IPv4Address | IPv6Address]:
    """Return the family, the socket address, and the host's address. IPv4 is preferred, as in uWSGI.

    OSError when the host is unknown.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{safe_repr(address.host)} is not the name of a host") from None
    family, _, _, _, sockaddr = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, sockaddr, bare_ip(str(sockaddr[0]))


@lru_cache(maxsize=1024)
def bare_ip(text: str) -> IPv4Address | IPv6Address:
    """Parse an IP address. The zone of an IPv6 address is removed, and an IPv4-mapped one becomes IPv4."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
