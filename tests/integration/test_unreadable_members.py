"""Undecodable messages of workflow members: failures are reported as far as possible."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord
from qworker.errors import ChordError
from qworker.testing import StepWorker

pytestmark = pytest.mark.integration


def damage_last(path: Path) -> None:
    """Replace the body of the latest message with invalid JSON."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE message SET body = x'7b' WHERE tag = (SELECT max(tag) FROM message)")
        database.commit()


def test_undecodable_member_fails_its_chord_but_not_the_rest_of_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    app = QWorker("unreadable", broker=f"sqlite:///{path}", set_as_current=False)

    @app.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="count")
    def count(values: list[Any]) -> int:
        return len(values)

    joined = chord([add.s(1, 2), add.s(3, 4)], count.s()).delay()
    damage_last(path)
    following = chain(add.s(1, 2), add.s(3)).delay()
    damage_last(path)
    with StepWorker(app) as worker:
        worker.run()
    with pytest.raises(ChordError, match="not valid JSON"):
        joined.get(timeout=1, follow_parents=False)
    assert (following.parent.state, following.state) == ("FAILURE", "PENDING")
    assert app.backend.joins.count() == 0
    assert [letter.reason.partition(":")[0] for letter in app.broker.admin.dead()] == ["invalid"] * 2
    app.close()
