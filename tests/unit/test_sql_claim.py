"""Claims on PostgreSQL: what is asked of the server, and what becomes of an answer when the next one
fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from qworker.transports.sql.link import ClaimOrder
from qworker.transports.sql.postgresql import CLAIM, CLAIM_AFTER, LONG_DRAIN, PROMOTE_DUE, Claims

BATCH = LONG_DRAIN // 2


class FakeServer:
    """Answers each statement by the next of *answers*: how many messages there are, an error, or the next due
    time."""

    def __init__(self, *answers: tuple[int, float | None] | psycopg.Error) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.tag = 0

    def execute(self, statement: str, values: Sequence[Any]) -> FakeServer:
        assert statement.count("%s") == len(values)
        self.asked.append(statement)
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


def claim(claims: Claims, server: FakeServer, due: float | None = None) -> list[int]:
    order = ClaimOrder(1, "q", 100.0, BATCH, 0, 105.0)
    return [leased.tag for leased in claims.claim(server, order, due).ready]


def drained(server: FakeServer) -> Claims:
    """In the midst of a long drain."""
    claims = Claims()
    claim(claims, server)
    claim(claims, server)
    server.asked.clear()
    return claims


def test_a_long_drain_goes_on_where_it_was_and_looks_at_the_front_at_its_end() -> None:
    server = FakeServer((BATCH, None), (BATCH, None), (10, None), (5, None), (0, None))
    claims = drained(server)
    assert len(claim(claims, server)) == 15
    assert server.asked == [CLAIM_AFTER, CLAIM]
    assert claim(claims, server) == []
    assert server.asked[2:] == [CLAIM]


def test_what_was_taken_is_given_when_the_look_at_the_front_fails() -> None:
    """The server has it as ours: a retry that did not know of it would leave it so for as long as we live."""
    server = FakeServer((BATCH, None), (BATCH, None), (10, None), psycopg.errors.DeadlockDetected("no"))
    assert len(claim(drained(server), server)) == 10
    nothing = FakeServer((BATCH, None), (BATCH, None), (0, None), psycopg.errors.DeadlockDetected("no"))
    with pytest.raises(psycopg.errors.DeadlockDetected):
        claim(drained(nothing), nothing)


@pytest.mark.parametrize(
    ("due", "asked"),
    [(None, [CLAIM]), (100.1, [CLAIM]), (100.0, [PROMOTE_DUE, CLAIM]), (5.0, [PROMOTE_DUE, CLAIM])],
)
def test_what_is_known_to_be_due_is_made_ready_first(due: float | None, asked: list[str]) -> None:
    server = FakeServer((3, None))
    claim(Claims(), server, due)
    assert server.asked == asked
