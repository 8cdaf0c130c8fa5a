"""Addresses: what a person writes for a socket, and what the system needs of it.

    host:port, [v6]:port    TCP; *:port is every network
    :port                   TCP on the loopback, 127.0.0.1
    @name                   an abstract UNIX socket, which Linux has
    path                    a UNIX socket: what has a slash, or no colon.

Comes from:  options, settings and the command line.
Goes to:     ``listening`` and ``client``.
Thread:      any; nothing is kept. Names of hosts are looked up.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.safe_repr import safe_repr

LOOPBACK = "127.0.0.1"
_PATH_BYTES = 107
"""Bytes that the path of a UNIX socket may have, where it has fewest but one: Linux."""


class TcpAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """abstract: *name* is none of a file."""

    name: str
    abstract: bool

    def __str__(self) -> str:
        return f"@{self.name}" if self.abstract else self.name

    @property
    def sockaddr(self) -> bytes:
        return (b"\0" if self.abstract else b"") + os.fsencode(self.name)


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """ConfigurationError when it is none."""
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
            "a UNIX socket of that name is written ./NAME"
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
    """The family, the socket's address, and the host's. One of version 4 is preferred, as uWSGI has it.

    OSError when nobody knows the host.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{safe_repr(address.host)} is not the name of a host") from None
    family, _, _, _, sockaddr = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, sockaddr, bare_ip(str(sockaddr[0]))


@lru_cache(maxsize=1024)
def bare_ip(text: str) -> IPv4Address | IPv6Address:
    """An IP address, without the zone of one of version 6; one of version 4 that was written as of version 6
    is of version 4."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
