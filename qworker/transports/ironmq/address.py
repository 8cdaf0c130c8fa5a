"""Address: the location of an IronMQ, our login, and encryption.

Comes from:  ``broker_url``, ``broker_use_ssl``; where the URL leaves something out, the variables of the
             environment that IronMQ's own clients read.
Goes to:     ``broker.py``, ``client.py``.
Thread:      any; pure.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from qworker.errors import ConfigurationError
from qworker.transports.tls import Tls, divided, tls_of

HOST = "mq-aws-us-east-1-1.iron.io"
"""The default region of IronMQ's own clients."""


class Address(NamedTuple):
    """base: the URL of all queues of the project, without a slash at its end."""

    base: str
    project: str
    token: str


def address_of(url: str, environment: Mapping[str, str]) -> Address:
    """Return the address in *url*: ``ironmq://project:token@host:port/path``, with missing parts from the
    *environment*. ``ironmq+http://`` is without TLS. Raises ConfigurationError for an invalid one."""

    def from_environment(name: str) -> str:
        return environment.get(f"IRON_MQ_{name}") or environment.get(f"IRON_{name}") or ""

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigurationError(
            "broker_url: this is not the address of an IronMQ server; write ironmq://PROJECT:TOKEN@HOST and "
            "escape all but letters and digits in the token as %2F and so on",
            setting="broker_url",
        ) from None
    project = unquote(parts.username or "") or from_environment("PROJECT_ID")
    token = unquote(parts.password or "") or from_environment("TOKEN")
    missing = [name for name, value in (("project", project), ("token", token)) if not value]
    if missing:
        raise ConfigurationError(
            f"broker_url: IronMQ needs a {' and a '.join(missing)}: write "
            "ironmq://PROJECT:TOKEN@HOST, or set IRON_MQ_PROJECT_ID and IRON_MQ_TOKEN in the environment",
            setting="broker_url",
        )
    protocol = "http" if _is_plain(url) else "https"
    host = parts.hostname or from_environment("HOST") or HOST
    if ":" in host:
        host = f"[{host}]"
    where = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/") or "/3"
    return Address(f"{protocol}://{where}{path}/projects/{quote(project, safe='')}/queues", project, token)


def tls_to(url: str, use_ssl: Any) -> Tls | None:
    """Return the TLS settings for *url*, from its parameters or *use_ssl*; None: the system's defaults, or no
    TLS. Raises ConfigurationError for unknown parameters, and for unusable files."""
    parameters, others = divided(parse_qsl(url.partition("?")[2]))
    if others:
        raise ConfigurationError(
            f"broker_url: ironmq:// only accepts ssl_ options, not {next(iter(others))!r}; other options "
            "belong in broker_transport_options",
            setting="broker_url",
        )
    tls = tls_of("ironmq", parameters, use_ssl)
    if tls is not None and _is_plain(url):
        raise ConfigurationError(
            "broker_url: ironmq+http:// does not use TLS, but broker_use_ssl or the URL's ssl_ options "
            "request it: write ironmq://",
            setting="broker_url",
        )
    return None if tls is None else tls.checked("broker_url")


def _is_plain(url: str) -> bool:
    return url.partition(":")[0].endswith("+http")
