"""Chooses the Link for a database: by its URL, in the driver's or SQLAlchemy's notation.

Comes from:  ``broker.py``; ``beat/server_database.py``, which keeps schedules in a database.
Goes to:     ``postgresql.py`` and ``mysql.py``, of which only the one that is needed is loaded.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from qworker.errors import ConfigurationError
from qworker.transports.sql.link import Link

_LINKS = {
    "postgresql": ("qworker.transports.sql.postgresql", "PostgreSQLLink"),
    "mysql": ("qworker.transports.sql.mysql", "MySQLLink"),
}


def family_of(url: str) -> str:
    """Return ``postgresql`` or ``mysql``, for a URL of one of them."""
    return "postgresql" if url.removeprefix("db+").startswith("postgres") else "mysql"


def connector(
    url: str, connect_timeout: float, options: Mapping[str, Any], setting: str = "broker_url"
) -> Callable[..., Link]:
    """Return a function that makes Links to *url*; its arguments: whether it is a consumer's, whose commits
    may return before they are on the disk; and the duration of its lease in seconds.

    setting: the one with the URL. Raises ConfigurationError when its driver is not installed, or its TLS
    settings can never work.
    """
    family, (_, _, rest) = family_of(url), url.partition("://")
    plain = f"{family}://{rest}"
    try:
        module, name = _LINKS[family]
        link: Any = getattr(import_module(module), name)
        link.check(plain)
    except ConfigurationError as error:
        if setting == "broker_url":
            raise
        raise ConfigurationError(str(error).replace("broker_url", setting), setting=setting) from error
    return partial(link, plain, connect_timeout, dict(options))


def as_written_plainly(url: str) -> str:
    """Return *url*, which is in SQLAlchemy's notation, in that of a Link. SQLAlchemy's may name a driver, has
    plus signs for blanks, and ``?host=A:1&host=B:2`` for several servers."""
    start, mark, query = url.removeprefix("db+").removeprefix("sqla+").partition("?")
    scheme, _, rest = start.partition("://")
    start = f"{scheme.partition('+')[0].lower()}://{rest}"
    if not mark:
        return start
    given = parse_qsl(query, keep_blank_values=True)
    if family_of(start) == "postgresql":
        hosts = [value for name, value in given if name == "host"]
        if any(":" in host for host in hosts) or len(hosts) > 1:
            places = [each.partition(":") for host in hosts for each in host.split(",")]
            given = [(name, value) for name, value in given if name not in ("host", "port")]
            given.append(("host", ",".join(host for host, _, _ in places)))
            given.append(("port", ",".join(port for _, _, port in places)))
    return f"{start}?{urlencode(given, quote_via=quote)}"
