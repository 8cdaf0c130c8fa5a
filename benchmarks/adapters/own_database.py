"""A database of its own in PostgreSQL or MariaDB for qworker's cells: made empty before, dropped after."""

from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.adapters.services import BROKER, QUEUE, SERVERS


def url(server: str = BROKER) -> str:
    """The server's URL with our database in place of the one that it names."""
    return urlsplit(SERVERS[server])._replace(path=f"/{QUEUE}").geturl()


def make() -> None:
    """Drop the database if it is there, and make it."""
    drop()
    _execute(f"CREATE DATABASE {QUEUE}")


def drop() -> None:
    """Drop the database, whoever is still connected to it."""
    _execute(f"DROP DATABASE IF EXISTS {QUEUE}" + (" WITH (FORCE)" if BROKER == "PostgreSQL" else ""))


def storage() -> dict[str, int]:
    """Bytes of tables and indexes, and in PostgreSQL how many dead rows are not vacuumed."""
    if BROKER == "PostgreSQL":
        names, query = (
            ("bytes", "dead rows"),
            "SELECT sum(pg_total_relation_size(relid))::bigint, sum(n_dead_tup)::bigint "
            "FROM pg_stat_user_tables",
        )
    else:
        names, query = (
            ("bytes",),
            "SELECT SUM(data_length + index_length) FROM information_schema.tables "
            "WHERE table_schema = DATABASE()",
        )
    connection = connect(url())
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        return dict(zip(names, map(int, cursor.fetchone()), strict=True))
    finally:
        connection.close()


def connect(where: str) -> Any:
    """A connection of the server's own client, which commits each statement."""
    parts = urlsplit(where)
    if parts.scheme == "postgresql":
        import psycopg

        return psycopg.connect(where, autocommit=True, connect_timeout=5)
    import pymysql

    return pymysql.connect(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 3306,
        user=unquote(parts.username or "root"),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or None,
        connect_timeout=5,
        autocommit=True,
    )


def _execute(statement: str) -> None:
    # PostgreSQL connects to a database that is there; MariaDB needs none.
    server = (
        SERVERS[BROKER] if BROKER == "PostgreSQL" else urlsplit(SERVERS[BROKER])._replace(path="").geturl()
    )
    connection = connect(server)
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()
