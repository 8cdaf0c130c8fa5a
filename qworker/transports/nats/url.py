"""A URL of NATS: the servers, who we are, and how it is encrypted.

Comes from:  ``broker_url``, ``broker_use_ssl``.
Goes to:     ``server.py``.
Thread:      any; pure.

``nats://[user:password@ | token@]host[:port][,host2[:port]…][?ssl_ca_certs=…]``, and ``tls://`` with TLS.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from qworker.errors import ConfigurationError
from qworker.transports.tls import Tls, divided, tls_of

PORT = 4222


class Place(NamedTuple):
    """servers: URLs without login. login: arguments of nats-py's connect(). shown: without what is
    secret."""

    servers: list[str]
    login: dict[str, str]
    tls: Tls | None
    shown: str


def read_url(url: str, use_ssl: Any = None) -> Place:
    """What *url* says. ConfigurationError when that is nothing to connect to."""
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    login_text, at, hosts = address.rpartition("@")
    parameters, others = divided(parse_qsl(query))
    hosts = hosts.rstrip("/")
    if others or "/" in hosts:
        wrong = next(iter(others), hosts.partition("/")[2])
        raise ConfigurationError(
            f"broker_url: {scheme}:// takes servers and ssl_ options, and not {wrong!r}; other options go "
            "into broker_transport_options",
            setting="broker_url",
        )
    tls = tls_of(scheme, {**({"ssl": True} if scheme == "tls" else {}), **parameters}, use_ssl)
    user, colon, password = login_text.partition(":")
    login: dict[str, str] = {}
    if at:
        login = {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}
    names = [_host(host) for host in (hosts or "127.0.0.1").split(",")]
    return Place(
        [f"{'tls' if tls else 'nats'}://{name}" for name in names],
        login,
        None if tls is None else tls.checked("broker_url"),
        f"{scheme}://{'********@' if at else ''}{hosts or '127.0.0.1'}",
    )


def _host(text: str) -> str:
    """*text* with a port."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigurationError(
            f"broker_url: {text!r} is not the host of a NATS server: write host or host:port",
            setting="broker_url",
        )
    return f"{host}:{port}"
