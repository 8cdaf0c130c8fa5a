"""The URL of Disque's nodes: disque://[:password@]node1[:port],node2[:port].

Comes from:  the setting broker_url.
Goes to:     ``nodes.py``.
Thread:      any; pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from qworker.conf.secrets import mask_urls
from qworker.errors import ConfigurationError
from qworker.transports.connect_errors import refuse_parameters

PORT = 7711
_NODE = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.%]+)\]|(?P<name>[^\[\]:/@,\s]+))(?::(?P<port>\d{1,5}))?")


class Address(NamedTuple):
    """The address of a node."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Nodes(NamedTuple):
    """The contents of a URL. password: None for none."""

    addresses: tuple[Address, ...]
    password: str | None


def parsed(url: str) -> Nodes:
    """Parse *url*. ConfigurationError for an invalid one, without showing the password."""
    refuse_parameters(url, "broker_url")
    rest = url.partition("://")[2].rstrip("/")
    login, _, places = rest.rpartition("@")
    password = unquote(login.partition(":")[2] or login.strip(":")) or None
    addresses = []
    for place in places.split(",") if places else ["127.0.0.1"]:
        match = _NODE.fullmatch(place.strip())
        port = int(match["port"] or PORT) if match else 0
        if match is None or not 0 < port < 65536:
            raise ConfigurationError(
                f"broker_url: {mask_urls(url)}: {mask_urls(place)!r} is not a node; write "
                "disque://[:password@]node1[:port],node2[:port]",
                setting="broker_url",
            )
        addresses.append(Address(match["six"] or match["name"], port))
    return Nodes(tuple(dict.fromkeys(addresses)), password)
