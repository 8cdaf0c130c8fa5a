"""Databases: which database of the project is the broker, as a URL that qworker's transports take.

Comes from:  ``DATABASES``, by Django's connections.
Goes to:     ``clusters/engine.py``, which opens the broker there.
Thread:      any; functions.

The URL leads to the same database as Django's own connection does, by a connection apart: claims must not
wait for a request's transaction, nor end with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connections

from qworker.errors import ConfigurationError

VENDORS = ("sqlite", "postgresql", "mysql")
"""Databases in which messages can be kept."""
_POSTGRESQL = frozenset(
    ["sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "service", "passfile", "options",
     "target_session_attrs", "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval",
     "keepalives_count", "hostaddr", "channel_binding", "gssencmode"]
)  # fmt: skip
"""Options of Django's that libpq takes."""
_MYSQL_TLS = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}


def url_of(alias: str) -> str:
    """Return the URL of the database *alias*.

    Raises ConfigurationError for one that cannot be a broker: another vendor's, or one in memory.
    """
    connection = connections[alias]
    vendor = connection.vendor
    if vendor not in VENDORS:
        raise ConfigurationError(
            f"the database {alias!r} is {connection.display_name}, which cannot keep messages: SQLite, "
            "PostgreSQL, MySQL and MariaDB can. Set Q_CLUSTER['orm'] to the alias of one, or another broker",
            setting="Q_CLUSTER['orm']",
        )
    return _URLS[vendor](alias, connection.settings_dict)


def is_in_memory(alias: str) -> bool:
    """Tell whether the database *alias* is SQLite's in memory, which no other process can read."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def own_connection(alias: str) -> Any:
    """Return a new connection of Django's to the database *alias*, which is no thread's and no pool's.

    Each of its statements is a transaction. Whoever asked for it closes it.
    """
    made = connections[alias].copy(alias)
    made.settings_dict["AUTOCOMMIT"] = True
    made.settings_dict["OPTIONS"] = {
        name: value for name, value in (made.settings_dict.get("OPTIONS") or {}).items() if name != "pool"
    }
    made.inc_thread_sharing()
    return made


def _sqlite(alias: str, settings: Mapping[str, Any]) -> str:
    if is_in_memory(alias):
        raise ConfigurationError(
            f"the database {alias!r} is in memory, which no other process can read: a cluster needs a file. "
            "In tests, Q_CLUSTER = {'sync': True} runs tasks at once",
            setting="Q_CLUSTER['orm']",
        )
    return f"sqlite:///{quote(str(Path(settings['NAME']).absolute()))}"


def _postgresql(alias: str, settings: Mapping[str, Any]) -> str:
    options = dict(settings.get("OPTIONS") or {})
    query = {name: value for name, value in options.items() if name in _POSTGRESQL}
    return _server("postgresql", settings, query, "host")


def _mysql(alias: str, settings: Mapping[str, Any]) -> str:
    options = dict(settings.get("OPTIONS") or {})
    query = {name: options[name] for name in ("unix_socket", "read_default_file") if name in options}
    tls = options.get("ssl") or {}
    query |= {_MYSQL_TLS[name]: value for name, value in tls.items() if name in _MYSQL_TLS}
    return _server("mysql", settings, query, "unix_socket")


def _server(scheme: str, settings: Mapping[str, Any], query: dict[str, Any], socket: str) -> str:
    """socket: the parameter by which a path in place of a host is told."""
    host, port = str(settings.get("HOST") or ""), settings.get("PORT")
    if host.startswith("/"):
        query[socket], host = host, ""
    user, password = settings.get("USER") or "", settings.get("PASSWORD") or ""
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    if ":" in host:
        host = f"[{host}]"
    where = f"{who}@{host}" if who else host
    if port:
        where += f":{port}"
    asked = f"?{urlencode({name: str(value) for name, value in query.items()})}" if query else ""
    return f"{scheme}://{where}/{quote(str(settings.get('NAME') or ''), safe='')}{asked}"


_URLS = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
