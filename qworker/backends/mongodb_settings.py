"""``mongodb_backend_settings``: what Celery's MongoDB store is told besides its URL.

Comes from:  the settings, in the words of Celery's manual.
Goes to:     ``mongodb.py``.
Thread:      any; pure.

What it says goes before the URL. Keys that are not known are options of PyMongo's client, as those under
``options`` are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from qworker.errors import ConfigurationError
from qworker.transports.mongodb.layout import DATABASE, Names

GROUPS = "celery_groupmeta"
_CLIENT = {"user": "username", "password": "password", "max_pool_size": "maxPoolSize"}
"""Celery's words for options of the client."""
_PORT = 27017


class Where(NamedTuple):
    """Where results are. database: None: that of the URL. options: of the client."""

    url: str
    database: str | None
    results: str
    groups: str
    options: Mapping[str, Any]

    @property
    def place(self) -> tuple[Any, ...]:
        """Which database of which servers, whoever asks."""
        hosts, database = _place(self.url)
        return hosts, self.database or database


def located(url: str, settings: Mapping[str, Any]) -> Where:
    """Where *url* and *settings* lead to. Raises ConfigurationError for what they cannot mean."""
    given = dict(settings)
    database, results, groups = (
        _name(given, *each)
        for each in (
            ("database", None),
            ("taskmeta_collection", Names().result),
            ("groupmeta_collection", GROUPS),
        )
    )
    hosts = given.pop("mongo_host", None)
    if "host" in given or "port" in given:
        hosts = _hosts(given.pop("host", "localhost"), given.pop("port", _PORT))
    options = given.pop("options", {})
    if not isinstance(options, Mapping):
        raise _wrong("options", options, "a dictionary of options of PyMongo's client")
    options = {**options, **{_CLIENT.get(name, name): value for name, value in given.items()}}
    return Where(_led_to(url, hosts), database, str(results), str(groups), options)


def _name(given: dict[str, Any], key: str, usual: str | None) -> str | None:
    value = given.pop(key, usual)
    if value is not None and not (isinstance(value, str) and value):
        raise _wrong(key, value, "a name")
    return value


def _hosts(host: Any, port: Any) -> Any:
    """The hosts, or the URL, that *host* names; those without a port get *port*."""
    if isinstance(host, str) and "://" in host:
        return host
    hosts = [host] if isinstance(host, str) else host
    if not isinstance(hosts, list | tuple) or not all(isinstance(each, str) for each in hosts):
        raise _wrong("host", host, "a host, a list of hosts or a URL")
    return [each if ":" in each else f"{each}:{port}" for each in hosts]


def _led_to(url: str, hosts: Any) -> str:
    """*url* with other hosts; None: its own."""
    if isinstance(hosts, str):
        return hosts if "://" in hosts else _led_to(url, [hosts])
    if hosts is None:
        return f"{url}localhost" if url == "mongodb://" else url
    start, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, _ = authority.rpartition("@")
    return f"{start.partition('+')[0]}://{user}{at}{','.join(hosts)}{slash}{path}"


def _wrong(key: str, value: Any, wanted: str) -> ConfigurationError:
    return ConfigurationError(
        f"mongodb_backend_settings: {key!r} is {value!r:.80}, but has to be {wanted}",
        setting="mongodb_backend_settings",
    )


def _place(url: str) -> tuple[tuple[str, ...], str]:
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].lower().split(",")
    named = {host if ":" in host or "+srv" in parts.scheme else f"{host}:{_PORT}" for host in hosts}
    plain = {host.replace("localhost:", "127.0.0.1:") for host in named}
    return tuple(sorted(plain)), parts.path.strip("/") or DATABASE
