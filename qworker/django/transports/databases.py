"""Databases: which database of the project is the broker, as a URL that qworker's transports take.

Comes from:  ``DATABASES``, by Django's connections.
Goes to:     ``clusters/engine.py``, which opens the broker there.
Thread:      any; functions.

The URL leads to the same database as Django's own connection does, by a separate connection: claims must not
wait for a request's transaction, nor end with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from qworker.errors import ConfigurationError
from qworker.naming import import_object
from qworker.safe_repr import safe_repr

LINKS = "qworker.transports.sql.links"
"""The module that only a project with such a server needs."""
VENDORS = ("sqlite", "postgresql", "mysql")
"""Databases in which messages can be kept."""
_OF_DJANGOS_CURSORS = frozenset({
    "cursor_factory", "connection_factory", "row_factory", "context", "client_encoding", "autocommit",
    "prepare_threshold", "isolation_level", "assume_role", "pool", "server_side_binding",
})  # fmt: skip
"""Options for PostgreSQL that are about statements of Django's, or are seen to by name."""
_OF_DJANGOS_ROWS = frozenset({"conv", "cursorclass", "converter_class", "isolation_level"})
"""Options for MySQL that are Python's objects, or Django's alone; all others are the URL's to know."""
_CONNECTOR_FLAGS = ("client_flags", "raise_on_warnings", "buffered", "use_pure")
"""Options of MySQL Connector that are about rows."""
_OF_SQLITE = frozenset({
    "database", "timeout", "check_same_thread", "isolation_level", "detect_types", "factory",
    "cached_statements", "uri", "autocommit", "transaction_mode", "init_command",
})  # fmt: skip
"""Options for SQLite: they are about statements, or how long to wait for others, and ours have their own."""
_SSL_FLAG = 2048
"""CLIENT.SSL, among the flags of MySQL's client."""


def url_of(alias: str) -> str:
    """Return the URL of the database *alias*.

    Raises ConfigurationError for one that cannot be a broker: another vendor's, one in memory, or one with an
    option that cannot be carried over.
    """
    connection = connections[alias]
    vendor = connection.vendor
    if vendor not in VENDORS:
        raise ConfigurationError(
            f"the database {alias!r} is {connection.display_name}, which cannot keep messages: SQLite, "
            "PostgreSQL, MySQL and MariaDB can. Set Q_CLUSTER['orm'] to the alias of one, or another broker",
            setting="Q_CLUSTER['orm']",
        )
    _check_types(alias, connection.settings_dict)
    try:
        given = dict(connection.get_connection_params())
    except (ImproperlyConfigured, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: Django does not take its OPTIONS: {error}", setting="DATABASES"
        ) from None
    return _URLS[vendor](alias, connection.settings_dict, given)


def _check_types(alias: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for invalid addresses. An option is checked by its reader."""
    told = {name: settings.get(name) for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
    for name, value in told.items():
        if name == "PORT":
            fits = re.fullmatch(r"\d*(,\d*)*", str(value or "")) and type(value) is not bool
            what = "the number of a port"
        else:
            fits, what = isinstance(value, str | PathLike | None), "text"
        if not fits:
            shown = "" if name == "PASSWORD" else f" is {safe_repr(value, 80)}, and"
            raise ConfigurationError(
                f"DATABASES[{alias!r}]: {name!r}{shown} must be {what}", setting="DATABASES"
            )
    if not isinstance(settings.get("OPTIONS"), Mapping):
        raise ConfigurationError(f"DATABASES[{alias!r}]: 'OPTIONS' must be a mapping", setting="DATABASES")


def check_options(alias: str) -> None:
    """Raise ConfigurationError when the database *alias* cannot be the broker because of its options. Does
    not connect. Databases in memory and of other vendors are reported when a cluster starts."""
    if connections[alias].vendor not in VENDORS or is_in_memory(alias):
        return
    url = url_of(alias)
    if not url.startswith("sqlite:"):
        try:
            import_object(f"{LINKS}:connector")(url, 1.0, {}, f"DATABASES[{alias!r}]")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. The broker connects to that database by itself, and as Django does",
                setting="DATABASES",
            ) from None


def is_in_memory(alias: str) -> bool:
    """Tell whether the database *alias* is SQLite's in memory, which no other process can read."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def own_connection(alias: str) -> Any:
    """Return a new connection of Django's to the database *alias*, which is no thread's and no pool's.

    Each of its statements is a transaction. The caller closes it.
    """
    made = connections[alias].copy(alias)
    made.settings_dict["AUTOCOMMIT"] = True
    made.settings_dict["OPTIONS"] = {
        name: value for name, value in (made.settings_dict.get("OPTIONS") or {}).items() if name != "pool"
    }
    made.inc_thread_sharing()
    return made


def _sqlite(alias: str, settings: Mapping[str, Any], given: dict[str, Any]) -> str:
    if is_in_memory(alias):
        raise ConfigurationError(
            f"the database {alias!r} is in memory, which no other process can read: tasks wait there, as in "
            f"tests, and no cluster takes them. A cluster needs a file; Q_CLUSTER = {{'sync': True}} runs "
            "tasks at once",
            setting="Q_CLUSTER['orm']",
        )
    unknown = sorted(set(given) - _OF_SQLITE)
    name = str(settings["NAME"])
    if name.startswith("file:"):
        parts = urlsplit(name)
        name = unquote(parts.path)
        unknown += [f"{key}={value}" for key, value in parse_qsl(parts.query) if _matters(key, value)]
    if unknown:
        raise _not_carried(alias, unknown[0])
    return f"sqlite:///{quote(str(Path(name).absolute()))}"


def _matters(name: str, value: str) -> bool:
    """Return whether a parameter of SQLite's URI requires a separate connection."""
    return name != "cache" and (name, value) not in (("mode", "rw"), ("mode", "rwc"))


def _postgresql(alias: str, settings: Mapping[str, Any], given: dict[str, Any]) -> str:
    options = settings.get("OPTIONS") or {}
    query = {name: value for name, value in given.items() if name not in _OF_DJANGOS_CURSORS}
    query = {name: value for name, value in query.items() if value is not None}
    if role := options.get("assume_role"):
        escaped = re.sub(r"([\\\s])", r"\\\1", _written(alias, "assume_role", role))
        stated = _written(alias, "options", query.get("options", ""))
        query["options"] = f"{stated} -c role={escaped}".strip()
    if "prepare_threshold" in options:  # Django's own default suits its ORM
        query["prepare_threshold"] = options["prepare_threshold"]
    database = query.pop("dbname", "")
    return _server(alias, "postgresql", database, query, {"host": "host", "port": "port"})


def _mysql(alias: str, settings: Mapping[str, Any], given: dict[str, Any]) -> str:
    query = {name: value for name, value in given.items() if name not in _OF_DJANGOS_ROWS}
    options = settings.get("OPTIONS") or {}
    for name in ("charset", "collation", *_CONNECTOR_FLAGS):
        query.pop(name, None)  # of Django's text and rows; ours has its own
    tls = query.pop("ssl", None)
    if isinstance(tls, Mapping):
        query |= {name if name.startswith("ssl") else f"ssl_{name}": value for name, value in tls.items()}
    elif tls is True:
        query.setdefault("ssl_mode", "REQUIRED")
    elif tls:
        raise _not_carried(alias, "ssl", "an object; write a mapping with 'ca', 'cert' and 'key'")
    flags = options.get("client_flag") or 0
    if not isinstance(flags, int):
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the option 'client_flag' is {safe_repr(flags, 80)}, but must be a whole "
            "number",
            setting="DATABASES",
        )
    query.pop("client_flag", None)
    if flags & _SSL_FLAG and not any(name.startswith("ssl") for name in query):
        query["ssl_mode"] = "REQUIRED"
    for written, name in (("passwd", "password"), ("db", "database")):
        if written in query:
            query.setdefault(name, query.pop(written))
    database = query.pop("database", "")
    query = {name: value for name, value in query.items() if value is not None}
    return _server(alias, "mysql", database, query, {"host": "unix_socket", "port": "port"})


def _not_carried(alias: str, option: str, what: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"DATABASES[{alias!r}] has the option {option!r}, which the broker's own connection to it cannot be "
        f"given{f': {what}' if what else ''}; take it out, or set another broker in Q_CLUSTER",
        setting="DATABASES",
    )


def _written(alias: str, option: str, value: Any) -> str:
    """Return an option's value as written in a URL."""
    if not isinstance(value, str | int | float | bytes | PathLike | None):
        shown = "" if "pass" in option else f" is {safe_repr(value, 80)}, and"
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the option {option!r}{shown} must be text or a number",
            setting="DATABASES",
        )
    return fsdecode(value) if isinstance(value, bytes | PathLike) else str(value)


def _server(alias: str, scheme: str, database: Any, query: dict[str, Any], names: Mapping[str, str]) -> str:
    """query: the login, the server's address, and options. names: the parameters for a host and a port that
    cannot be in the address."""
    host, port, user, password, database = (
        _written(alias, name, value or "")
        for name, value in (
            *((name, query.pop(name, None)) for name in ("host", "port", "user", "password")),
            ("NAME", database),
        )
    )
    if not re.fullmatch(r"\d*(,\d*)*", port):
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the option 'port' is {port!r:.80}, and must be the number of a port",
            setting="DATABASES",
        )
    if host.startswith(("/", "@")) or "," in host + port:
        query[names["host"]] = host
        if port:
            query[names["port"]] = port
        host = port = ""
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    if ":" in host:
        host = f"[{host}]"
    where = f"{who}@{host}" if who else host
    if port:
        where += f":{port}"
    asked = {name: _written(alias, name, value) for name, value in query.items()}
    text = f"?{urlencode(asked, quote_via=quote)}" if asked else ""
    return f"{scheme}://{where}/{quote(database, safe='')}{text}"


_URLS = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
