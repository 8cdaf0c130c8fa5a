"""MariaDB through PyMySQL, with the durability that the server is set up for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from benchmarks.adapters.services import MARIADB_URL
from benchmarks.limits.limit import BODY, Limit, rate

GROUP = "MariaDB"
TABLE = "qworker_benchmarks_limit"


def _on_table(make: Callable[[Any], Callable[[], object]], each: int) -> Callable[[Path, float], float]:
    def measure(directory: Path, seconds: float) -> float:
        import pymysql

        parts = urlsplit(MARIADB_URL)
        connection = pymysql.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=parts.path[1:],
            autocommit=True,
            connect_timeout=5,
            read_timeout=10,
        )
        try:
            cursor = connection.cursor()
            cursor.execute(f"DROP TABLE IF EXISTS {TABLE}")
            cursor.execute(f"CREATE TABLE {TABLE} (id BIGINT AUTO_INCREMENT PRIMARY KEY, body BLOB)")
            try:
                return rate(make(cursor), each, seconds)
            finally:
                cursor.execute(f"DROP TABLE {TABLE}")
        finally:
            connection.close()

    return measure


def _insert(rows: int) -> Callable[[Any], Callable[[], object]]:
    values = ", ".join(["(%s)"] * rows)
    return lambda cursor: lambda: cursor.execute(f"INSERT INTO {TABLE} (body) VALUES {values}", [BODY] * rows)


LIMITS = (
    Limit(
        "MariaDB SELECT 1, a round trip",
        GROUP,
        _on_table(lambda cursor: lambda: cursor.execute("SELECT 1"), 1),
        ("latency_p50",),
    ),
    Limit("MariaDB one-row insert and commit", GROUP, _on_table(_insert(1), 1), ("enqueue_rate",)),
    Limit("MariaDB 500-row insert and commit", GROUP, _on_table(_insert(500), 500), ("bulk_rate",)),
)
