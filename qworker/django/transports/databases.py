"""databases: the URL of a project's database, for qworker's transports.

Comes from:  ``DATABASES``, through Django's connections.
Goes to:     ``opening.py`` and ``clusters/engine.py``, which open the broker there.
Thread:      any; functions.

The broker uses a separate connection to the same database: taking messages must not wait for a request's
transaction, or end with it.
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
"""Needed only for PostgreSQL, MySQL and MariaDB."""
VENDORS = ("sqlite", "postgresql", "mysql")
"""Databases that can be the broker."""
_OF_DJANGOS_CURSORS = frozenset({
    "cursor_factory", "connection_factory", "row_factory", "context", "client_encoding", "autocommit",
    "prepare_threshold", "isolation_level", "assume_role", "pool", "server_side_binding",
})  # fmt: skip
"""Options for PostgreSQL that concern Django's own statements, or are handled by name."""
_OF_DJANGOS_ROWS = frozenset({"conv", "cursorclass", "converter_class", "isolation_level"})
"""Options for MySQL that are Python objects, or concern only Django; the others go into the URL."""
_CONNECTOR_FLAGS = ("client_flags", "raise_on_warnings", "buffered", "use_pure")
"""Options of MySQL Connector that concern rows."""
_OF_SQLITE = frozenset({
    "database", "timeout", "check_same_thread", "isolation_level", "detect_types", "factory",
    "cached_statements", "uri", "autocommit", "transaction_mode", "init_command",
})  # fmt: skip
"""Options for SQLite about statements, or waiting for locks: the broker has its own values."""
_SSL_FLAG = 2048
"""CLIENT.SSL, a flag of MySQL's client."""


def url_of(alias: str) -> str:
    """Return the URL of the database *alias*.

    Raises ConfigurationError if it cannot be the broker: for another vendor, a database in memory, or an
    option that has no equivalent.
    """
    connection = connections[alias]
    vendor = connection.vendor
    if vendor not in VENDORS:
        raise ConfigurationError(
            f"the database {alias!r} is {connection.display_name}, which cannot be the broker: set "
            "Q_CLUSTER['orm'] to the alias of an SQLite, PostgreSQL, MySQL or MariaDB database, or use "
            "another broker",
            setting="Q_CLUSTER['orm']",
        )
    _check_types(alias, connection.settings_dict)
    try:
        given = dict(connection.get_connection_params())
    except (ImproperlyConfigured, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: Django does not accept its OPTIONS: {error}", setting="DATABASES"
        ) from None
    return _URLS[vendor](alias, connection.settings_dict, given)


def _check_types(alias: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an invalid address. Options are checked where they are read."""
    address = {name: settings.get(name) for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT")}
    for name, value in address.items():
        if name == "PORT":
            fits = re.fullmatch(r"\d*(,\d*)*", str(value or "")) and type(value) is not bool
            what = "a port number"
        else:
            fits, what = isinstance(value, str | PathLike | None), "text"
        if not fits:
            shown = "" if name == "PASSWORD" else f" is {safe_repr(value, 80)}, but"
            raise ConfigurationError(
                f"DATABASES[{alias!r}]: {name!r}{shown} must be {what}", setting="DATABASES"
            )
    if not isinstance(settings.get("OPTIONS"), Mapping):
        raise ConfigurationError(f"DATABASES[{alias!r}]: 'OPTIONS' must be a mapping", setting="DATABASES")


def check_options(alias: str) -> None:
    """Raise ConfigurationError if the database *alias* cannot be the broker because of its options, without
    connecting. Databases in memory and of other vendors are reported when a cluster starts."""
    if connections[alias].vendor not in VENDORS or is_in_memory(alias):
        return
    url = url_of(alias)
    if not url.startswith("sqlite:"):
        try:
            import_object(f"{LINKS}:connector")(url, 1.0, {}, f"DATABASES[{alias!r}]")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. The broker connects to this database with the same options as Django",
                setting="DATABASES",
            ) from None


def is_in_memory(alias: str) -> bool:
    """Return whether *alias* is an SQLite database in memory, which no other process can read."""
    connection = connections[alias]
    return connection.vendor == "sqlite" and bool(connection.is_in_memory_db())


def own_connection(alias: str) -> Any:
    """Return a new Django connection to the database *alias*, outside threads' connections and pools.

    It is in autocommit mode. The caller closes it.
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
            f"the database {alias!r} is in memory, where other processes cannot read it, so a cluster cannot "
            "take tasks from it. Use a database file, or set Q_CLUSTER = {'sync': True} to run tasks at once",
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
    """Return whether a parameter of SQLite's URI changes how the file is used."""
    return name != "cache" and (name, value) not in (("mode", "rw"), ("mode", "rwc"))


def _postgresql(alias: str, settings: Mapping[str, Any], given: dict[str, Any]) -> str:
    options = settings.get("OPTIONS") or {}
    query = {name: value for name, value in given.items() if name not in _OF_DJANGOS_CURSORS}
    query = {name: value for name, value in query.items() if value is not None}
    if role := options.get("assume_role"):
        escaped = re.sub(r"([\\\s])", r"\\\1", _written(alias, "assume_role", role))
        stated = _written(alias, "options", query.get("options", ""))
        query["options"] = f"{stated} -c role={escaped}".strip()
    if "prepare_threshold" in options:  # Django's own default is for its ORM
        query["prepare_threshold"] = options["prepare_threshold"]
    database = query.pop("dbname", "")
    return _server(alias, "postgresql", database, query, {"host": "host", "port": "port"})


def _mysql(alias: str, settings: Mapping[str, Any], given: dict[str, Any]) -> str:
    query = {name: value for name, value in given.items() if name not in _OF_DJANGOS_ROWS}
    options = settings.get("OPTIONS") or {}
    for name in ("charset", "collation", *_CONNECTOR_FLAGS):
        query.pop(name, None)  # these concern Django's rows
    tls = query.pop("ssl", None)
    if isinstance(tls, Mapping):
        query |= {name if name.startswith("ssl") else f"ssl_{name}": value for name, value in tls.items()}
    elif tls is True:
        query.setdefault("ssl_mode", "REQUIRED")
    elif tls:
        raise _not_carried(alias, "ssl", "an object; use a mapping with 'ca', 'cert' and 'key'")
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
        f"DATABASES[{alias!r}] has the option {option!r}, which the broker's connection does not support"
        f"{f': {what}' if what else ''}; remove it, or set another broker in Q_CLUSTER",
        setting="DATABASES",
    )


def _written(alias: str, option: str, value: Any) -> str:
    """Return an option's value as text for a URL."""
    if not isinstance(value, str | int | float | bytes | PathLike | None):
        shown = "" if "pass" in option else f" is {safe_repr(value, 80)}, but"
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the option {option!r}{shown} must be text or a number",
            setting="DATABASES",
        )
    return fsdecode(value) if isinstance(value, bytes | PathLike) else str(value)


def _server(alias: str, scheme: str, database: Any, query: dict[str, Any], names: Mapping[str, str]) -> str:
    """Return the URL. query: the login, the server's address, and options. names: the parameters for a host
    and port that cannot be in the URL's address."""
    host, port, user, password, database = (
        _written(alias, name, value or "")
        for name, value in (
            *((name, query.pop(name, None)) for name in ("host", "port", "user", "password")),
            ("NAME", database),
        )
    )
    if not re.fullmatch(r"\d*(,\d*)*", port):
        raise ConfigurationError(
            f"DATABASES[{alias!r}]: the option 'port' is {port!r:.80}, but must be a port number",
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
