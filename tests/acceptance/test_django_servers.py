"""Database servers that cut connections, restart, and choose deadlock victims, used by a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite, migrated, site_on
from tests.acceptance.private_servers import MariaDB, PostgreSQL, Redis, serving
from tests.support.django_databases import ProjectDatabase

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(180)]


@pytest.fixture(params=["postgresql", "mysql", "redis"])
def restartable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[DjangoSite, Any]]:
    """A site and the server of its database; if the broker is Redis, the server is that of the results."""
    kind, cluster = request.param, {}
    if kind == "redis":
        kind = "postgresql"
    name, make = {"postgresql": ("postgresql", PostgreSQL), "mysql": ("mariadb", MariaDB)}[kind]
    with serving(name, make) as server, serving("redis", Redis) as redis:
        if request.param == "redis":
            cluster = {"redis": redis.url}
        database = migrated(kind, tmp_path, server.url)
        database.settings["CONN_MAX_AGE"] = None
        with site_on(tmp_path, database, {"workers": 3, **cluster}) as site:
            yield site, server


def test_cluster_survives_a_database_kill(restartable: tuple[DjangoSite, Any]) -> None:
    """Tasks that ran meanwhile are stored after the restart, waiting ones run, and schedules continue."""
    site, server = restartable
    cluster = site.start()
    go = site.path / "go"
    site.send_many("read_rows", [("warm-0",), ("warm-1",), ("warm-2",)])
    site.drained()
    site.send_many("until_file", [(f"long-{number}", str(go)) for number in range(2)], hook=f"{TASKS}.told")
    links = [
        (f"{TASKS}.until_file", ("link-0", str(go))),
        (f"{TASKS}.work", ("link-1",)),
        (f"{TASKS}.work", ("link-2",)),
    ]
    whole = site.do(f"answer = async_chain({links!r})")
    site.do(f"Schedule.objects.create(name='due', func='{TASKS}.work', args=\"'tick'\", schedule_type='I')")
    running = ("long-0", "long-1", "link-0")
    for key in running:
        site.started(key)
    waiting = [(f"row-{number}",) for number in range(30)]
    site.send_many("work", waiting)
    server.kill()
    go.touch()
    site.until(lambda: all(site.ends(key) for key in running), "the tasks to end without a database")
    server.start()
    site.until(lambda: site.task(site.ids["long-0"]) and site.task(site.ids["long-1"]), "their results")
    site.until(lambda: len(site.tasks(group=whole)) == 3, "the chain")
    site.until(lambda: site.ends("tick"), "the schedule")
    site.drained()
    assert len(site.tasks(group=whole)) == 3, "a link was called twice"
    rows = {row["id"]: row["success"] for row in site.tasks()}
    for key, task_id in site.ids.items():
        assert rows[task_id], f"{key}\n{cluster.log}"
    assert all(site.starts(key) == 1 for (key,) in waiting)
    assert cluster.alive
    cluster.stop()


@pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)
def test_repeatedly_cut_connections_lose_nothing(database: ProjectDatabase, tmp_path: Path) -> None:
    """All connections, during many tasks with hooks: nothing is lost, no task has two results."""
    database.settings["CONN_MAX_AGE"] = None
    with site_on(tmp_path, database) as site:
        for start in range(0, 500, 100):
            calls = [(str(number), 0.005) for number in range(start, start + 100)]
            site.send_many("work", calls, hook=f"{TASKS}.told")
        clusters = [site.start("one"), site.start("two")]
        for share in (0.1, 0.3, 0.5, 0.7):
            site.until(lambda share=share: len(site._counted("E")) >= 1000 * share, "a share of the tasks")
            database.sever()
        site.check()
        for cluster in clusters:
            assert cluster.alive
            cluster.stop()


DEADLOCKS = {
    "postgresql": "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
    "mysql": "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'Innodb_deadlocks'",
}
"""The number of deadlocks so far: in this database, or in the whole MariaDB server."""


@pytest.mark.parametrize("database", ["postgresql", "mysql"], indirect=True)
def test_deadlocks_lose_no_result(database: ProjectDatabase, tmp_path: Path) -> None:
    """Another client locks rows of tasks in reverse order while they are stored."""

    def deadlocks() -> int:
        return int(database.rows(DEADLOCKS[database.kind])[0][0])

    before = deadlocks()
    with site_on(tmp_path, database) as site:
        over = threading.Event()
        cluster = site.start()
        ids: list[str] = []
        thread = threading.Thread(target=_lock_backwards, args=(database, ids, over))
        thread.start()
        try:
            for turn in range(40):
                ids += site.send_many("work", [(f"{turn}-{n}",) for n in range(40)], hook=f"{TASKS}.told")
                site.until(lambda: deadlocks() >= before + 3 or site.waiting() == 0, "what was sent")
                if deadlocks() >= before + 3:
                    break
            assert deadlocks() >= before + 3
        finally:
            over.set()
            thread.join()
        site.check()
        cluster.stop()


def _lock_backwards(database: ProjectDatabase, ids: list[str], over: threading.Event) -> None:
    with closing(database.connect()) as connection:
        while not over.is_set():
            try:
                with closing(connection.cursor()) as cursor:
                    cursor.execute("BEGIN")
                    for task_id in sorted(ids, reverse=True):
                        cursor.execute("UPDATE qworker_task SET func = func WHERE id = %s", (task_id,))
                    cursor.execute("COMMIT")
            except Exception:  # noqa: BLE001 - driver-specific errors; this client may be the deadlock victim, too
                with closing(connection.cursor()) as cursor:
                    cursor.execute("ROLLBACK")
