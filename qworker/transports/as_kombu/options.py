"""The broker of a kombu connection, and its settings.

Comes from:  ``kombu.Connection(url, transport_options=…)``; Celery's ``broker_url`` and
             ``broker_transport_options``.
Goes to:     ``open_broker``, as our settings.
Thread:      any; pure, except that each mistake is logged once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from kombu.utils.url import parse_url

from qworker.conf.resolved import Settings
from qworker.errors import ConfigurationError
from qworker.transports.capabilities import warn

SETTINGS = {
    "lease_seconds": "worker_lease_seconds",
    "synchronous": "embedded_synchronous",
    "dead_letter_expires": "dead_letter_expires",
    "dead_letter_max": "dead_letter_max",
}
"""Our setting for each option of the transport."""
OWN = ("max_deliveries",)
"""Options used by the transport itself."""
KOMBUS = (
    "max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout", "errback",
    "callback", "polling_interval", "confirm_publish", "client_properties",
)  # fmt: skip
"""Options used by kombu or Celery, for any transport."""
HIDING = ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "sqs", "ironmq")
"""Schemes of brokers with a ``visibility_timeout``; others have leases and ignore it."""
NATIVE = ("amqp", "amqps", "pyamqp")
"""Schemes of brokers that kombu supports in the same format."""
TOKENS = ("nats", "tls")
"""Schemes of a broker that may have a token in place of a user without a password."""
PREFIX = "qworker+"


def url_of(client: Any) -> str:
    """Return the URL of our broker in a kombu connection. After a failover the connection only has its parts:
    then it is the alternate with these parts."""
    if client.hostname and "://" in client.hostname:
        return _allowed(whole(client, client.hostname.removeprefix(PREFIX)))
    for url in client.alt or ():
        pieces = parse_url(url)
        if all(getattr(client, name) == pieces[name] for name in _COMPARED if pieces.get(name) is not None):
            return _allowed(url.removeprefix(PREFIX))
    raise ConfigurationError(
        "a connection to a broker of qworker's needs its whole URL, such as qworker+postgresql://host/name",
        setting="broker_url",
    )


def part(client: Any) -> None:
    """Separate the password of a kombu connection from the URL: Celery sends everything but the password with
    its statistics."""
    url = client.hostname or ""
    user, colon, password = _user_of(url).partition(":")
    if client.password:
        return
    if colon:
        client.hostname = url.replace(f"{user}:{password}@", f"{user}@", 1)
        client.password = password
    elif user and _has_token(url):
        client.hostname = url.replace(f"{user}@", "", 1)
        client.password = user


def whole(client: Any, url: str) -> str:
    """Return *url* of a kombu connection with its password."""
    user = _user_of(url)
    if not isinstance(client.password, str) or ":" in user or "://" not in url:
        return url
    start = url.index("://") + len("://")
    if not user and _has_token(url):
        return f"{url[:start]}{client.password}@{url[start:]}"
    return f"{url[:start]}{user}:{client.password}@{url[start:].removeprefix(f'{user}@')}"


def _has_token(url: str) -> bool:
    return url.removeprefix(PREFIX).partition("://")[0] in TOKENS


def _user_of(url: str) -> str:
    """Return the user and password in *url*; "" for none."""
    return re.split("[/?#]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[0]


_COMPARED = ("hostname", "port", "userid", "virtual_host")


def _allowed(url: str) -> str:
    scheme = url.partition("://")[0]
    if scheme.partition("+")[0] in NATIVE:
        raise ConfigurationError(
            f"kombu itself supports RabbitMQ, and shares queues with our workers: write {scheme}:// without "
            f"{PREFIX}",
            setting="broker_url",
        )
    return url


def max_deliveries_of(client: Any) -> int:
    """Return how many failed deliveries a message may have; 0: no limit. Raises ConfigurationError for an
    invalid number."""
    given = client.transport_options.get("max_deliveries") or 0
    if isinstance(given, int) and given >= 0:
        return given
    raise ConfigurationError(
        f"broker_transport_options: max_deliveries must be a whole number, 0 for no limit, not {given!r}",
        setting="broker_transport_options",
    )


def settings_of(client: Any, url: str) -> Settings:
    """Return our settings for a kombu connection to *url*: options that are our settings, and all others as
    options of the broker's transport. QWORKER_* and pyproject.toml are ignored."""
    options = {name: value for name, value in client.transport_options.items() if name not in KOMBUS + OWN}
    if url.partition("://")[0].partition("+")[0] not in HIDING:
        options.pop("visibility_timeout", None)
    values: dict[str, Any] = {
        setting: options.pop(option) for option, setting in SETTINGS.items() if option in options
    }
    warn(url, options, (*SETTINGS, *OWN))
    values["broker_transport_options"] = options
    if client.ssl:
        values["broker_use_ssl"] = client.ssl
    if client.connect_timeout:
        values["broker_connection_timeout"] = max(0.1, float(client.connect_timeout))
    return Settings(values, label="broker_transport_options", environ={}, directory=Path(os.devnull))
