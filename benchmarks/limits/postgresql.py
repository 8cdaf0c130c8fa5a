"""PostgreSQL through psycopg, with the durability that the server is set up for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.adapters.services import POSTGRES_URL
from benchmarks.limits.limit import BODY, Limit, rate

GROUP = "PostgreSQL"
TABLE = "qworker_benchmarks_limit"
FILLED = 10_000
_CLAIM = (
    f"WITH chosen AS (SELECT id FROM {TABLE} WHERE NOT taken ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) "
    f"UPDATE {TABLE} SET taken = true FROM chosen WHERE {TABLE}.id = chosen.id RETURNING body"
)


def _on_table(
    make: Callable[[Any], Callable[[], object]], each: int, filled: bool = False
) -> Callable[[Path, float], float]:
    def measure(directory: Path, seconds: float) -> float:
        import psycopg

        with psycopg.connect(POSTGRES_URL, autocommit=True, connect_timeout=5) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
            connection.execute(
                f"CREATE TABLE {TABLE} (id bigserial PRIMARY KEY, taken boolean DEFAULT false, body bytea)"
            )
            connection.execute(f"CREATE INDEX ON {TABLE} (id) WHERE NOT taken")
            try:
                if filled:
                    connection.execute(
                        f"INSERT INTO {TABLE} (body) SELECT %s FROM generate_series(1, %s)",
                        (BODY, FILLED if each == 1 else 10 * FILLED),
                    )
                    connection.execute(f"ANALYZE {TABLE}")
                return rate(make(connection), each, seconds)
            finally:
                connection.execute(f"DROP TABLE {TABLE}")

    return measure


def _insert(rows: int) -> Callable[[Any], Callable[[], object]]:
    values = ", ".join(["(%s)"] * rows)
    return lambda connection: (
        lambda: connection.execute(f"INSERT INTO {TABLE} (body) VALUES {values}", [BODY] * rows)
    )


def _claim(rows: int) -> Callable[[Any], Callable[[], object]]:
    return lambda connection: lambda: bool(connection.execute(_CLAIM, [rows]).fetchall())


LIMITS = (
    Limit(
        "PostgreSQL SELECT 1, a round trip",
        GROUP,
        _on_table(lambda connection: lambda: connection.execute("SELECT 1").fetchall(), 1),
        ("latency_p50",),
    ),
    Limit("PostgreSQL one-row insert and commit", GROUP, _on_table(_insert(1), 1), ("enqueue_rate",)),
    Limit("PostgreSQL 500-row insert and commit", GROUP, _on_table(_insert(500), 500), ("bulk_rate",)),
    Limit("PostgreSQL SKIP LOCKED claim of 1", GROUP, _on_table(_claim(1), 1, filled=True)),
    Limit(
        "PostgreSQL SKIP LOCKED claim of 50", GROUP, _on_table(_claim(50), 50, filled=True), ("noop_rate",)
    ),
)
