"""Claims on PostgreSQL: the statements sent to the server, and the messages already claimed when the next
statement fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from qworker.transports.sql.link import ClaimOrder
from qworker.transports.sql.postgresql import CLAIM, CLAIM_AFTER, LONG_DRAIN, PROMOTE_DUE, QueueDrains

BATCH = LONG_DRAIN // 2


class FakeServer:
    """Answers each statement with the next of *answers*: the number of messages and the next due time, or an
    error."""

    def __init__(self, *answers: tuple[int, float | None] | psycopg.Error) -> None:
        self.answers = list(answers)
        self.statements: list[str] = []
        self.tag = 0

    def execute(self, statement: str, values: Sequence[Any]) -> FakeServer:
        assert statement.count("%s") == len(values)
        self.statements.append(statement)
        if statement != PROMOTE_DUE:
            self.answer = self.answers.pop(0)
            if isinstance(self.answer, psycopg.Error):
                raise self.answer
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        count, due = self.answer  # type: ignore[misc]
        self.tag += count
        tags = range(self.tag - count + 1, self.tag + 1)
        return [
            *((tag, "q", 0, None, 0, 0, 0, "{}", None, b"") for tag in tags),
            (*[None] * 3, due, *[None] * 6),
        ]


def claim(claims: QueueDrains, server: FakeServer, due: float | None = None) -> list[int]:
    order = ClaimOrder(1, "q", 100.0, BATCH, 0, 105.0)
    return [leased.tag for leased in claims.claim(server, order, due).ready]


def drained(server: FakeServer) -> QueueDrains:
    """Claims in the middle of a long drain."""
    claims = QueueDrains()
    claim(claims, server)
    claim(claims, server)
    server.statements.clear()
    return claims


def test_long_drain_continues_after_its_last_message_and_ends_at_the_front() -> None:
    server = FakeServer((BATCH, None), (BATCH, None), (10, None), (5, None), (0, None))
    claims = drained(server)
    assert len(claim(claims, server)) == 15
    assert server.statements == [CLAIM_AFTER, CLAIM]
    assert claim(claims, server) == []
    assert server.statements[2:] == [CLAIM]


def test_claimed_messages_are_returned_if_the_next_statement_fails() -> None:
    """The server counts them as ours: if they were dropped here, nobody would get them while we live."""
    server = FakeServer((BATCH, None), (BATCH, None), (10, None), psycopg.errors.DeadlockDetected("no"))
    assert len(claim(drained(server), server)) == 10
    nothing = FakeServer((BATCH, None), (BATCH, None), (0, None), psycopg.errors.DeadlockDetected("no"))
    with pytest.raises(psycopg.errors.DeadlockDetected):
        claim(drained(nothing), nothing)


@pytest.mark.parametrize(
    ("due", "statements"),
    [(None, [CLAIM]), (100.1, [CLAIM]), (100.0, [PROMOTE_DUE, CLAIM]), (5.0, [PROMOTE_DUE, CLAIM])],
)
def test_due_messages_are_promoted_before_the_claim(due: float | None, statements: list[str]) -> None:
    server = FakeServer((3, None))
    claim(QueueDrains(), server, due)
    assert server.statements == statements
