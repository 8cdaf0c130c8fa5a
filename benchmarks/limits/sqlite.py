"""SQLite commits on the disk that the cells use. A queue that makes every publish durable cannot pass the
one-row figure for synchronous=FULL unless it groups commits."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.limits.limit import BODY, Limit, rate
from benchmarks.peer import EMBEDDED


def _commits(synchronous: str, rows: int) -> Callable[[Path, float], float]:
    def measure(directory: Path, seconds: float) -> float:
        directory.mkdir(parents=True, exist_ok=True)
        home = Path(tempfile.mkdtemp(prefix="limits-", dir=directory))
        connection = sqlite3.connect(home / "limit.db", isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB)")

            def step() -> None:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO message (body) VALUES (?)", [(BODY,)] * rows)
                connection.execute("COMMIT")

            return rate(step, rows, seconds)
        finally:
            connection.close()
            shutil.rmtree(home, ignore_errors=True)

    return measure


def _limit(synchronous: str, rows: int, *bounds: str) -> Limit:
    title = f"SQLite WAL, {rows}-row commits, synchronous={synchronous}"
    return Limit(title, EMBEDDED, _commits(synchronous, rows), bounds)


LIMITS = (
    _limit("FULL", 1, "enqueue_rate"),
    _limit("NORMAL", 1),
    _limit("FULL", 50),
    _limit("NORMAL", 50),
    _limit("FULL", 500, "bulk_rate"),
)
