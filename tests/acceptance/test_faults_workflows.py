"""Workflows while workers, children and servers are killed: every body runs once, with every value.

Each seed chooses servers and faults. ``TEST_QWORKER_SEEDS=200`` tries 200 of them; the default is seven,
one for each set of servers.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from qworker import chain, chord, graph, group
from qworker.canvas.plan import SEGMENT
from qworker.canvas.signatures import Signature
from qworker.errors import QWorkerError
from tests.acceptance.brokers import Broken, RemoteSite
from tests.acceptance.ledger import messages_run
from tests.acceptance.processes import kill
from tests.contract.place_sql import MySQLPlace

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(300)]

SEEDS = int(os.environ.get("TEST_QWORKER_SEEDS", "7"))
PLACES: dict[str, tuple[str, str, str]] = {
    "sqlite": ("", "", "auto"),
    "redis, celery": ("redis", "", "celery"),
    "redis, shared": ("redis", "", "shared"),
    "postgresql": ("postgresql", "", "auto"),
    "rabbitmq, redis": ("rabbitmq", "redis", "auto"),
    "rabbitmq, postgresql": ("rabbitmq", "postgresql", "auto"),
    "mariadb": ("", "", "auto"),
}
"""Server of the messages, server of the results ("" for the same), canvas_format. The servers are private,
except MariaDB, which is shared and not killed."""
POINTS = (
    "join-claimed", "body-made", "body-sent", "finishing-join", "join-finished", "joins-opened", "calls-sent",
    "recording-parts", "parts-recorded", "acking", "storing", "ran", "reported", "settled",
)  # fmt: skip
COPIES = 3
PATIENCE = 150.0


@pytest.fixture(params=range(SEEDS))
def chance(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


@pytest.fixture
def place(request: pytest.FixtureRequest, chance: random.Random) -> str:
    return list(PLACES)[request.node.callspec.params["chance"] % len(PLACES)]


@pytest.fixture
def servers(place: str, _private_servers: Callable[[str, str], Broken]) -> Iterator[list[Broken]]:
    kinds = [kind for kind in PLACES[place][:2] if kind]
    with ExitStack() as stack:
        found = [_private_servers(kind, "broker") for kind in kinds]
        for each in found:
            stack.enter_context(each.exposed())
        yield found


@pytest.fixture
def database(tmp_path: Path, place: str) -> Iterator[str]:
    """The URL if there is no private server: a file, or a database of MariaDB."""
    if place != "mariadb":
        yield f"sqlite:///{tmp_path}/broker.db"
        return
    made = MySQLPlace(tmp_path)
    yield made.url
    made.clear()


@pytest.fixture
def site(tmp_path: Path, place: str, servers: list[Broken], database: str) -> Iterator[RemoteSite]:
    broker = servers[0].direct if servers else database
    store = servers[-1].direct if servers else broker
    results = f"db+{store}" if store.startswith(("postgresql", "mysql")) else store
    settings = {"canvas_format": PLACES[place][2], "worker_lease_seconds": 2, "task_max_deliveries": 50}
    with RemoteSite(tmp_path, broker, broker, results, **settings) as site:
        yield site


def call_workflows(site: RemoteSite) -> list[tuple[Any, Any]]:
    """Call workflows of all kinds; returns their results with the expected values."""
    app = site.client

    def s(name: str, *args: Any) -> Any:
        return Signature(name, args, app=app)

    flows: list[tuple[Any, Any]] = [
        (chord([s("work", n) for n in range(4)], s("close"), app=app), [0, 1, 2, 3]),
        (
            chord(
                [chord([s("work", n), s("work", 7)], s("close"), app=app) for n in range(2)],
                s("close"),
                app=app,
            ),
            [[0, 7], [1, 7]],
        ),
        (chain(s("work", 1), group(s("work") for _ in range(3)), s("close"), app=app), [1, 1, 1]),
        (
            chain(group(s("work", 5), s("work", 6)), group(s("gather"), s("gather")), s("close"), app=app),
            [[5, 6], [5, 6]],
        ),
        (
            graph(
                {"a": s("work", 1), "b": s("work", 2), "c": s("close"), "d": s("close"), "e": s("work", 3)},
                after={"c": ["a", "b"], "d": {"values": "c"}},
                app=app,
            ),
            {"a": 1, "b": 2, "c": {"a": 1, "b": 2}, "d": {"a": 1, "b": 2}, "e": 3},
        ),
        (chain(s("work", 1), *(s("work") for _ in range(SEGMENT)), s("close"), app=app), 1),
    ]
    return [(work.apply_async(), value) for _ in range(COPIES) for work, value in flows]


def test_every_body_runs_once_despite_faults(
    site: RemoteSite, servers: list[Broken], chance: random.Random
) -> None:
    results = call_workflows(site)
    hit, point = site.path / "hit", chance.choice(POINTS)
    worker = site.start(ready=False, environment={"QWORKER_CRASH_AT": f"{point}@{hit}"})
    faults = [chance.choice(("worker", "child", "server" if servers else "child")) for _ in range(2)]
    waiting, asked = dict(enumerate(results)), time.monotonic() + chance.uniform(1.0, 3.0)

    def done() -> bool:
        nonlocal worker, asked
        if not worker.alive:
            worker = site.start(ready=False, name="again")
        elif faults and time.monotonic() > asked:
            fault, asked = faults.pop(), time.monotonic() + chance.uniform(0.5, 2.0)
            if fault == "worker":
                worker.kill()
            elif fault == "child" and (pool := worker.pool()):
                kill(chance.choice(pool))
            elif fault == "server":
                server = chance.choice(servers).server
                server.kill()
                server.start()
        with suppress(QWorkerError):
            for number, (result, _) in list(waiting.items()):
                if result.ready():
                    del waiting[number]
        return not waiting

    try:
        site.until(done, "the workflows to end", PATIENCE)
    except AssertionError as error:
        error.add_note(f"{point}, {faults}: {[results[number] for number in waiting]}")
        raise
    site.until(lambda: site.waiting() == 0, "the queues to be empty", PATIENCE)
    for result, value in results:
        assert result.get(timeout=5) == value, point
    followed = {
        result.id for result, value in results if value == 1
    }  # sent by the task before it, not by a join
    ran = messages_run(site.path / "bodies")
    assert {body: tags for body, tags in ran.items() if len(tags) > 1 and body not in followed} == {}, point
    assert len(ran) == COPIES * 9
    site.until(lambda: site.client.backend.joins.count() == 0, "the joins to be done")
    if worker.alive:
        # A server killed just now may not have answered an ack yet: this answer comes after it.
        assert Signature("work", (1,), app=site.client).apply_async().get(timeout=PATIENCE) == 1
        worker.stop()
