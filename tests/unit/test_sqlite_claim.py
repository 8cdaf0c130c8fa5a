"""The cost of a claim must not grow with the number of waiting messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qworker.transports.lease import MAX_LEASE_BYTES
from qworker.transports.sql.embedded import Database
from qworker.transports.sql.embedded.consumer import CLAIM, CLAIM_DELAYED


def steps(path: Path, waiting: int, state: int, statement: str, *values: Any) -> int:
    """Virtual machine steps, in hundreds, of *statement* with *waiting* messages."""
    database = Database(path / f"{waiting}.db")
    database.prepare()
    connection = database.connect("NORMAL")
    connection.execute("BEGIN")
    connection.executemany(
        "INSERT INTO message (queue, state, due, sent, headers, body) VALUES ('q', ?, ?, 0, '{}', x'00')",
        [(state, number) for number in range(waiting)],
    )
    counted = []
    connection.set_progress_handler(lambda: counted.append(1) and None, 100)
    assert len(connection.execute(statement, values).fetchall()) == 10
    connection.set_progress_handler(None, 0)
    connection.execute("ROLLBACK")
    connection.close()
    return len(counted)


@pytest.mark.parametrize(
    ("state", "statement", "values"),
    [(0, CLAIM, (1, "q", 10)), (1, CLAIM_DELAYED, (1, "q", 1e9, 10))],
    ids=["ready", "near"],
)
def test_claim_reads_only_the_messages_it_takes(
    tmp_path: Path, state: int, statement: str, values: tuple[Any, ...]
) -> None:
    few = steps(tmp_path, 20, state, statement, *values)
    many = steps(tmp_path, 5000, state, statement, *values)
    assert 0 < many <= few + 2


def test_claim_is_limited_by_size(tmp_path: Path) -> None:
    database = Database(tmp_path / "large.db")
    database.prepare()
    connection = database.connect("NORMAL")
    half = MAX_LEASE_BYTES // 2
    connection.executemany(
        "INSERT INTO message (queue, sent, headers, body) VALUES ('q', 0, '{}', zeroblob(?))",
        [(half,), (half - 1,), (10,), (1,)],
    )
    taken = connection.execute(CLAIM, (1, "q", 10)).fetchall()
    assert sorted(row[0] for row in taken) == [1, 2, 3]
    connection.close()
