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
from tests.integration.test_joins_again import Env, made
from tests.servers import prefix_of, require

pytestmark = pytest.mark.integration

Make = Callable[[Env, Any], Any]
FLOWS: dict[str, Make] = {
    "chain": lambda env, first: chain(first, env.s("give"), env.s("give"), app=env.app),
    "long chain": lambda env, first: chain(first, *(env.s("give") for _ in range(70)), app=env.app),
    "group": lambda env, first: group([first, env.s("give", 2)], app=env.app),
    "chord": lambda env, first: chord([first, env.s("give", 2)], env.s("gather"), app=env.app),
    "chord of chords": lambda env, first: chord(
        [chord([first, env.s("give", 2)], env.s("gather"), app=env.app), env.s("give", 3)],
        env.s("gather").on_error(env.s("notified")),
        app=env.app,
    ),
    "graph": lambda env, first: graph(
        {"a": first, "b": env.s("give"), "c": env.s("give", 1), "d": env.s("gather")},
        after={"b": {"value": "a"}, "d": {"values": "b"}},
        app=env.app,
    ),
    "chain to chord": lambda env, first: chain(
        first, group(env.s("give"), env.s("give")), env.s("gather"), app=env.app
    ),
}
BROKER_KEYS = (
    ":_kombu.",
    ":qworker.epoch",
    ":qworker.queues",
    ":qworker.revoked",
    ":qworker.letter.",
    ":qworker.dead",
    ":qworker.failure.",
    ":qworker.failed",
    ":qworker.marker.",
    ":qworker.wake.",
)
"""Keys that a broker keeps without any workflow; letters are dead letters, failures failed tasks."""
ENDS = ("success", "failure", "revoked", "unknown")


def run_all(env: Env) -> int:
    """Run a workflow of every kind to each end; return their number."""
    env.app.conf.task_unknown_delays = ()
    count = 0
    with StepWorker(env.app) as worker:
        for make in FLOWS.values():
            for end in ENDS:
                first = env.s("fail") if end == "failure" else env.s("give", 1)
                if end == "unknown":
                    first["task"] = "nobody.knows"
                first.set(task_id=f"{end}-{count}")
                if end == "revoked":
                    env.app.control.revoke(str(first.id))
                make(env, first).apply_async()
                worker.run()
                count += 1
        assert env.app.backend.joins.count() == 0
        if isinstance(env.app.clock, FakeClock):
            worker.advance(1)
            env.app.clock.advance(
                10 * 86400
            )  # each part of a long chain waits for as long as results are kept
            worker.run()
            env.app.backend.sweep(env.app.clock.now())
    return count


@pytest.mark.parametrize("kind", ["same", "separate"])
def test_no_row_is_left_in_sqlite(tmp_path: Path, kind: str) -> None:
    env = made(tmp_path, kind)
    assert run_all(env) == len(FLOWS) * len(ENDS)
    env.app.close()
    found: dict[str, int] = {}
    for path in tmp_path.glob("*.db"):
        with closing(sqlite3.connect(path)) as connection:
            for table in ("message", "result", "joins", "part", "key_value", "owner"):
                (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                if count:
                    found[f"{path.name} {table}"] = count
    assert found == {}


@pytest.mark.parametrize("kind", ["same", "separate"])
@pytest.mark.parametrize("flow", ["long chain", "chord", "chord of chords", "graph"])
def test_unsendable_workflow_leaves_no_join(tmp_path: Path, kind: str, flow: str) -> None:
    env = made(tmp_path, kind)
    FLOWS[flow](env, env.s("give", 1)).apply_async()
    count = env.app.backend.joins.count()
    assert count > 0
    with pytest.raises(EncodeError):
        FLOWS[flow](env, env.s("give", object())).apply_async()
    assert env.app.backend.joins.count() == count
    env.app.close()


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_no_row_of_results_is_left(tmp_path: Path, kind: str) -> None:
    env = made(tmp_path, kind)
    tables = env.app.conf.database_table_names.values()
    engine = connect(require(kind), {}, short_lived=True)
    run_all(env)
    env.app.close()
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

    env = made(tmp_path, kind)
    run_all(env)
    env.app.close()
    client = redis.Redis.from_url(require("redis"))
    keys = list(client.scan_iter(f"{prefix_of(tmp_path)}*", 10_000))
    kept = sorted(key.decode().removeprefix(prefix_of(tmp_path)[:-1]) for key in keys if client.ttl(key) < 0)
    for key in keys:
        client.delete(key)
    client.close()
    assert keys
    assert [key for key in kept if not key.startswith(BROKER_KEYS)] == []
