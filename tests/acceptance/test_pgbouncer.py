"""Workers and callers behind PgBouncer in transaction mode, with faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker import chord
from tests.acceptance.brokers import RemoteSite
from tests.acceptance.private_servers import PgBouncer, serving

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def bouncer() -> Iterator[PgBouncer]:
    with serving("postgresql") as server, serving("pgbouncer", server=server.url) as bouncer:
        yield bouncer


def test_tasks_survive_a_killed_worker_and_restarts_of_the_pooler(bouncer: PgBouncer, tmp_path: Path) -> None:
    with RemoteSite(tmp_path, bouncer.url, bouncer.server) as site:
        first, second = site.start(), site.start()
        assert "behind a connection pooler" in first.log
        ids = [site.send("work", number) for number in range(40)]
        first.kill()
        ids += [site.send("work", number) for number in range(40)]
        bouncer.kill()
        bouncer.start()
        ids += [site.send("work", number) for number in range(40)]
        site.ended(*ids)
        site.drained()
        assert second.alive
        assert "Traceback" not in second.log


def test_callers_behind_the_pooler_share_results_with_workers_that_are_not(
    bouncer: PgBouncer, tmp_path: Path
) -> None:
    for name in ("direct", "pooled"):
        (tmp_path / name).mkdir()
    with (
        RemoteSite(tmp_path / "direct", bouncer.server, bouncer.server) as site,
        RemoteSite(tmp_path / "pooled", bouncer.url, bouncer.server) as callers,
    ):
        worker = site.start()
        assert "behind a connection pooler" not in worker.log
        app = callers.client
        join = chord([app.signature("work", (number,)) for number in range(5)], app.signature("gather"))
        assert join.apply_async().get(timeout=30) == [0, 1, 2, 3, 4]
