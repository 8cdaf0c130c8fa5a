"""When workflows have ended, however they did, and their results have expired, nothing of them is left."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qworker import chain, chord, graph, group
from qworker.backends.sql.tables import connect
from qworker.errors import EncodeError
from qworker.testing import FakeClock, StepWorker
from tests.integration.test_joins_again import House, made
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

Make = Callable[[House, Any], Any]
FLOWS: dict[str, Make] = {
    "chain": lambda house, first: chain(first, house.s("give"), house.s("give"), app=house.app),
    "long chain": lambda house, first: chain(first, *(house.s("give") for _ in range(70)), app=house.app),
    "group": lambda house, first: group([first, house.s("give", 2)], app=house.app),
    "chord": lambda house, first: chord([first, house.s("give", 2)], house.s("gather"), app=house.app),
    "chord of chords": lambda house, first: chord(
        [chord([first, house.s("give", 2)], house.s("gather"), app=house.app), house.s("give", 3)],
        house.s("gather").on_error(house.s("told")),
        app=house.app,
    ),
    "graph": lambda house, first: graph(
        {"a": first, "b": house.s("give"), "c": house.s("give", 1), "d": house.s("gather")},
        after={"b": {"value": "a"}, "d": {"values": "b"}},
        app=house.app,
    ),
    "chain to chord": lambda house, first: chain(
        first, group(house.s("give"), house.s("give")), house.s("gather"), app=house.app
    ),
}
OF_THE_BROKER = (
    ":_kombu.",
    ":qworker.epoch",
    ":qworker.queues",
    ":qworker.revoked",
    ":qworker.letter.",
    ":qworker.dead",
    ":qworker.failure.",
    ":qworker.failed",
)
"""What a broker keeps without any workflow; the letters are dead letters, the failures failed tasks."""
ENDS = ("success", "failure", "revoked", "unknown")


def run_all(house: House) -> int:
    """Run a workflow of every kind to each end; how many there were."""
    house.app.conf.task_unknown_delays = ()
    count = 0
    with StepWorker(house.app) as worker:
        for make in FLOWS.values():
            for end in ENDS:
                first = house.s("fail") if end == "failure" else house.s("give", 1)
                if end == "unknown":
                    first["task"] = "nobody.knows"
                first.set(task_id=f"{end}-{count}")
                if end == "revoked":
                    house.app.control.revoke(str(first.id))
                make(house, first).apply_async()
                worker.run()
                count += 1
        assert house.app.backend.joins.count() == 0
        if isinstance(house.app.clock, FakeClock):
            worker.advance(1)
            house.app.clock.advance(
                10 * 86400
            )  # each part of a long chain waits for as long as results are kept
            worker.run()
            house.app.backend.sweep(house.app.clock.now())
    return count


@pytest.mark.parametrize("kind", ["together", "apart"])
def test_no_row_is_left(tmp_path: Path, kind: str) -> None:
    house = made(tmp_path, kind)
    assert run_all(house) == len(FLOWS) * len(ENDS)
    house.app.close()
    found: dict[str, int] = {}
    for path in tmp_path.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            for table in ("message", "result", "joins", "part", "key_value", "owner"):
                (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                if count:
                    found[f"{path.name} {table}"] = count
    assert found == {}


@pytest.mark.parametrize("kind", ["together", "apart"])
@pytest.mark.parametrize("flow", ["long chain", "chord", "chord of chords", "graph"])
def test_what_cannot_be_sent_leaves_no_join(tmp_path: Path, kind: str, flow: str) -> None:
    house = made(tmp_path, kind)
    FLOWS[flow](house, house.s("give", 1)).apply_async()
    count = house.app.backend.joins.count()
    assert count > 0
    with pytest.raises(EncodeError):
        FLOWS[flow](house, house.s("give", object())).apply_async()
    assert house.app.backend.joins.count() == count
    house.app.close()


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_no_row_of_results_is_left(tmp_path: Path, kind: str) -> None:
    house = made(tmp_path, kind)
    tables = house.app.conf.database_table_names.values()
    engine = connect(require(kind), {}, short_lived=True)
    run_all(house)
    house.app.close()
    with engine.connect() as connection:
        counts = {
            table: connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar() for table in tables
        }
        for table in tables:
            connection.execute(sa.text(f"DROP TABLE {table}"))
        connection.commit()
    engine.dispose()
    assert counts == dict.fromkeys(tables, 0)


@pytest.mark.parametrize("kind", ["redis celery", "redis shared"])
def test_every_key_expires(tmp_path: Path, kind: str) -> None:
    import redis

    house = made(tmp_path, kind)
    run_all(house)
    house.app.close()
    client = redis.Redis.from_url(require("redis"))
    keys = list(client.scan_iter(f"{prefix_of(tmp_path)}*", 10_000))
    kept = sorted(key.decode().removeprefix(prefix_of(tmp_path)[:-1]) for key in keys if client.ttl(key) < 0)
    for key in keys:
        client.delete(key)
    client.close()
    assert keys
    assert [key for key in kept if not key.startswith(OF_THE_BROKER)] == []
