"""What the machine itself allows: SQLite commits on the disk that the cells use, and a loop that times the noise.

A queue that makes every publish durable cannot pass the one-row figure for synchronous=FULL unless it groups commits.
"""

import shutil
import sqlite3
import tempfile
import time
from pathlib import Path

BODY = b"x" * 300


def sqlite_commits(directory: Path, synchronous: str, rows: int, seconds: float) -> float:
    """Rows a second, inserted `rows` to a transaction into a table in WAL mode below `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="limits-", dir=directory))
    try:
        connection = sqlite3.connect(home / "limit.db", isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB)")
            done = 0
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO message (body) VALUES (?)", [(BODY,)] * rows)
                connection.execute("COMMIT")
                done += rows
            return done / (time.monotonic() - began)
        finally:
            connection.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(directory: Path, seconds: float = 1.0) -> dict[str, float]:
    """All limits: title to rows a second."""
    return {
        f"SQLite WAL, {rows}-row commits, synchronous={synchronous}": sqlite_commits(
            directory, synchronous, rows, seconds
        )
        for rows in (1, 50)
        for synchronous in ("FULL", "NORMAL")
    }


def noise() -> float:
    """Milliseconds that a fixed loop takes now. Far above the least of a run, the machine was busy with other work."""
    began = time.perf_counter()
    total = 0
    for number in range(200_000):
        total += number
    return (time.perf_counter() - began) * 1e3
