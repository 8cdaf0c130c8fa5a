"""Workflows that are cancelled as a whole: nothing runs, and nothing is left of them when results expire."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Set
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker, chain, chord, graph, group
from qworker.canvas.plan import SEGMENT
from qworker.clock import SYSTEM_CLOCK
from qworker.errors import TaskRevokedError
from qworker.results.tree import line
from qworker.testing import FakeClock, StepWorker
from tests.support.waiting import until

pytestmark = pytest.mark.integration

REVOCATIONS = {"revoked", "sqlite_sequence", "qworker_revoked"}
"""What is remembered of orders to revoke lives as long as ``revoke_expires`` says."""


class House:
    """An app whose results live for a second. left: the rows or keys that there are."""

    def __init__(self, broker: str, results: str, left: Callable[[], Set[Any]], **conf: Any) -> None:
        self.fake = FakeClock() if broker.startswith("sqlite") else None
        self.left = left
        clock = self.fake or SYSTEM_CLOCK
        self.app = QWorker("stop", broker=broker, backend=results, clock=clock, set_as_current=False, **conf)
        self.app.conf.result_expires = 1
        self.ran: list[Any] = []
        task = self.app.task

        @task(name="run")
        def run(*args: Any, **values: Any) -> int:
            self.ran.append(args)
            return 1

        @task(name="stop", bind=True)
        def stop(this: Any, *args: Any, **values: Any) -> None:
            self.result.revoke()

    def flow(self, kind: str, first: str = "run") -> Any:
        run = self.app.signature
        if kind == "chain":
            return chain(run(first), *(run("run") for _ in range(3 * SEGMENT)))
        if kind == "chord":
            return chord([run(first), *(run("run") for _ in range(4))], run("run") | run("run"))
        if kind == "nested":
            inner = (
                run("run") | group(run("run"), chain(*(run("run") for _ in range(SEGMENT + 3)))) | run("run")
            )
            return run(first) | group(inner, inner) | run("run") | group(run("run"), run("run"))
        nodes = {name: run(first if name == "a" else "run") for name in "abcd"}
        return graph({**nodes, "e": self.flow("nested")}, {"b": "a", "c": "a", "d": ["b", "c"], "e": ["d"]})

    def expire(self) -> None:
        """Let the life of results, of each segment of a chain and of each level of a graph pass."""
        if self.fake is not None:
            self.fake.advance(1000)  # which joins are done is remembered for five minutes at least
            self.app.backend.sweep(self.fake.now())
        else:
            until(self.swept)

    def swept(self) -> bool:
        return self.app.backend.sweep(SYSTEM_CLOCK.now()) is not None and not self.new()

    def new(self) -> Set[Any]:
        return self.left() - self.before


def rows_of_sqlite(path: Path) -> Set[Any]:
    with closing(sqlite3.connect(path)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            (table, *row)
            for table in tables
            if table not in REVOCATIONS
            for row in connection.execute(f'SELECT count(*) FROM "{table}"')
            if row != (0,)
        }


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    url = f"sqlite:///{tmp_path}/queue.db"
    house = House(url, url, lambda: rows_of_sqlite(tmp_path / "queue.db"))
    yield house
    house.app.close()


@pytest.mark.parametrize("kind", ["chain", "chord", "nested", "graph"])
@pytest.mark.parametrize("when", ["before", "running"])
def test_a_whole_workflow_is_cancelled(house: House, kind: str, when: str) -> None:
    with StepWorker(house.app) as worker:
        house.app.signature("run").delay()
        worker.run()
        house.before = house.left()
        flow = house.flow(kind, "run" if when == "before" else "stop")
        house.result = result = flow()
        if when == "before":
            result.revoke()
        house.ran.clear()
        worker.run()
        if when == "before":  # else some members were in the worker's hands already
            assert house.ran == []
        singles = [single for each in line(result) for single in each._singles()]
        ended = {each.state for each in singles}
        assert ended <= {"REVOKED", "FAILURE", "SUCCESS"}
        assert ended & {"REVOKED", "FAILURE"}
        with pytest.raises(TaskRevokedError):
            result.get(timeout=5)
        house.expire()
        worker.run()
        assert house.new() == set()


def test_what_has_ended_is_not_revoked_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    house = House(url, url, set)
    with StepWorker(house.app) as worker:
        result = house.flow("chord")()
        worker.run()
        assert result.get(timeout=5) == 1
        assert [each.get(timeout=5) for each in line(result)]
        result.revoke()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        assert connection.execute("SELECT count(*) FROM revoked").fetchone() == (0,)
    house.app.close()
