"""Stores of schedules: open the store of an app.

Comes from:  the service, ``app.schedules`` and the command line.
Goes to:     ``store_sql``, ``store_redis``, ``store_memory``; wrapped in ``sealed`` with a security_key.
Thread:      any.

Without the setting ``beat_store``, schedules are stored with messages, if that is a database or Redis; else
with results, if possible; else in memory, with settings and code only.
"""

from __future__ import annotations

from qworker.beat.place_sqlite import SQLitePlace
from qworker.beat.store import ScheduleStore
from qworker.beat.store_memory import MemoryScheduleStore
from qworker.beat.store_sql import SQLScheduleStore
from qworker.contracts import App
from qworker.errors import ConfigurationError
from qworker.transports.sql.embedded import Database, database_path

REDIS = frozenset(["redis", "rediss", "valkey", "valkeys", "unix", "sentinel"])
SQL = frozenset(["postgresql", "postgres", "mysql", "mariadb"])


def open_store(app: App, scope: str | None = None) -> ScheduleStore:
    """Return the schedule store of *app*, not connected yet. Raises ConfigurationError.

    scope: of the schedules; None: from the settings.
    """
    scope = scope or app.conf.beat_scope or app.main or "default"
    store = _open(app, scope)
    if app.signer is None:
        return store
    from qworker.beat.sealed import SealedScheduleStore

    return SealedScheduleStore(store, app.signer, scope)


def _open(app: App, scope: str) -> ScheduleStore:
    url = store_url(app)
    scheme = _scheme(url)
    if url is None or scheme == "memory":
        return MemoryScheduleStore(app.clock)
    if scheme == "sqlite":
        return SQLScheduleStore(SQLitePlace(Database(database_path(url))), scope, app.clock)
    if scheme in REDIS:
        from qworker.beat.store_redis import open_redis_store

        return open_redis_store(app, url, scope)
    if scheme in SQL:
        from qworker.beat.place_server import ServerPlace

        return SQLScheduleStore(ServerPlace(url, app.clock), scope, app.clock)
    raise ConfigurationError(
        f"beat_store: schedules cannot be kept by {scheme}://: PostgreSQL, MySQL, MariaDB, SQLite and Redis "
        "can",
        setting="beat_store",
    )


def store_url(app: App) -> str | None:
    """Return the URL of the schedule store of *app*; None for memory."""
    if app.conf.beat_store is not None:
        return app.conf.beat_store
    if _keeps(app.broker.url):
        return app.broker.url
    found = app.backend.url  # last, because loading an SQL backend takes much memory
    return found if _keeps(found) else None


def _keeps(url: str) -> bool:
    return _scheme(url) in {"sqlite", *REDIS, *SQL} and ";" not in url


def _scheme(url: str | None) -> str:
    scheme = (url or "").partition(":")[0].removeprefix("db+").removeprefix("sqla+")
    return scheme.partition("+")[0].lower()
