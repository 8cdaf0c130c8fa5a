"""The default place of results: with the messages, or sent as messages to the caller.

Comes from:  ``broker_url`` and ``result_backend``.
Goes to:     ``stores.py`` and code that checks settings: a URL like ``result_backend``, and the settings to
             open the store with.
Thread:      any; pure functions.

A broker that is not in the table PLACES keeps no results until ``result_backend`` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from qworker.conf.results import options_beside
from qworker.transports import broker_urls

NOWHERE = "disabled://"
REPLIES = "rpc://"


class ResultPlace(NamedTuple):
    """url: like ``result_backend``. conf: the settings for the store. with_broker: whether it is the
    broker's own store, used by default. why_none: why results are not available, and what to do; "" if they
    are."""

    url: str
    conf: Any
    with_broker: bool = False
    why_none: str = ""

    @property
    def replies(self) -> bool:
        """Whether results are sent to the caller."""
        return self.url.startswith(REPLIES)


class _Changed:
    """The settings *conf* with some changes."""

    def __init__(self, conf: Any, changes: Mapping[str, Any]) -> None:
        self._conf = conf
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else getattr(self._conf, name)


def _as_it_is(url: str) -> str:
    return url


def _for_sqlalchemy(url: str) -> str:
    """Return the URL of a database for SQLAlchemy: without the driver, and with several servers or socket
    paths as parameters."""
    scheme, _, rest = url.partition("://")
    family = scheme.partition("+")[0].lower()
    family = "postgresql" if family == "postgres" else family
    start, mark, query = rest.partition("?")
    authority, slash, database = start.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, colon, password = login.partition(":")
    login = f"{quote(unquote(user), safe='')}{colon}{quote(unquote(password), safe='')}"
    if family == "postgresql":
        query = query.replace("+", "%2B")  # SQLAlchemy would decode it as a space
        if "," in hosts or "%" in hosts:
            named = "&".join(f"host={quote(unquote(host), safe=':')}" for host in hosts.split(","))
            hosts, mark, query = "", "?", f"{named}&{query}" if query else named
    return f"db+{family}://{login}{at}{hosts}{slash}{database}{mark}{query}"


def _of_connections(conf: Any) -> dict[str, Any]:
    """Return the broker's connection options, which also apply to its results."""
    return {
        "result_backend_transport_options": options_beside(conf),
        "redis_backend_use_ssl": conf.redis_backend_use_ssl or conf.broker_use_ssl,
    }


FOR_POOLERS = ("prepare_threshold", "pooler")


def _of_engines(conf: Any) -> dict[str, Any]:
    """Return the engine options that apply to results too: those for poolers."""
    options = conf.database_engine_options
    ours = {name: value for name, value in conf.broker_transport_options.items() if name in FOR_POOLERS}
    if not ours:
        return {}
    given = {**ours, **options.get("connect_args", {})}
    return {"database_engine_options": {**options, "connect_args": given}}


def _nothing(conf: Any) -> dict[str, Any]:
    return {}


class _Derivation(NamedTuple):
    """url: makes the result URL from the broker's. changes: settings to change for results."""

    url: Callable[[str], str] = _as_it_is
    changes: Callable[[Any], dict[str, Any]] = _nothing


_BESIDE = _Derivation(changes=_of_connections)
_IN_TABLES = _Derivation(_for_sqlalchemy, _of_engines)
_TO_THE_CALLER = _Derivation(lambda url: REPLIES)

PLACES: Mapping[str, _Derivation] = {
    "sqlite": _Derivation(),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "sentinel", "mongodb"), _BESIDE),
    **dict.fromkeys(("postgresql", "postgres", "mysql", "mariadb"), _IN_TABLES),
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), _TO_THE_CALLER),
}
"""The default place of results for a broker, by its URL's scheme up to a plus."""


def file_of(url: str) -> str | None:
    """Return the path of the file or directory of a result store at *url*; None for servers and memory."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        from qworker.transports.sql.embedded.path import database_path  # its package loads sqlite3

        return str(database_path(url))
    if scheme == "file":
        return unquote(urlsplit(url).path)
    if scheme.removeprefix("db+").removeprefix("sqla+").partition("+")[0] != "sqlite":
        return None
    name = rest.partition("?")[0].removeprefix("///")
    return None if name.startswith(("//", ":", "file:")) or not name else name


_SET_IT = (
    "set result_backend, for instance to redis://…, db+postgresql://… or file:///directory, to ask for the "
    "result of a task"
)
DISABLED = f"results are not kept (result_backend is {NOWHERE}): {_SET_IT}"
"""The reason if results are disabled."""


def result_place(conf: Any, broker: str | None = None) -> ResultPlace:
    """Return where the settings *conf* keep results. broker: the URL of the broker; None: ``broker_url``."""
    configured: str | None = conf.result_backend
    if configured is not None:
        return ResultPlace(configured, conf, why_none=DISABLED if configured.startswith(NOWHERE) else "")
    url, *others = broker_urls(broker or conf.broker_url or "sqlite:")
    if others:
        why = f"results are not kept, because broker_url names several brokers: {_SET_IT}"
        return ResultPlace(NOWHERE, conf, why_none=why)
    scheme = url.partition(":")[0].partition("+")[0].lower()
    place = PLACES.get(scheme)
    if place is None:
        why = f"results are not kept, because a broker at {scheme}:// keeps none: {_SET_IT}"
        return ResultPlace(NOWHERE, conf, why_none=why)
    changes = place.changes(conf)
    return ResultPlace(
        place.url(url), _Changed(conf, changes) if changes else conf, place is not _TO_THE_CALLER
    )
