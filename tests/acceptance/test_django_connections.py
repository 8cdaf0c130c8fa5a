"""Django's database connections around tasks: cut, persistent, pooled, left in a transaction; on each kind
of database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite, site_on
from tests.support.django_databases import ProjectDatabase

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]
SERVERS = ["postgresql", "mysql"]

SHARED = """
from django.contrib.auth.models import Group
from qworker import shared_task
from tests.acceptance.django_tasks import run

@shared_task
def read_rows(key):
    with run(key):
        return Group.objects.count()
"""


def with_options(database: ProjectDatabase, **options: Any) -> dict[str, Any]:
    return {"DATABASES": {"default": {**database.settings, **options}}}


def each_way(site: DjangoSite, name: str, first: str) -> None:
    """Read the database in a function, a coroutine and a shared task, one after another."""
    calls = {
        "shared": f"from counted.tasks import read_rows; read_rows.delay('{name}-shared')",
        "async": f"async_task('{TASKS}.read_rows_async', '{name}-async')",
        "plain": f"async_task('{TASKS}.read_rows', '{name}-plain')",
    }
    for kind in (first, *sorted(calls.keys() - {first})):
        site.do(calls[kind])
        site.until(lambda kind=kind: site.ends(f"{name}-{kind}"), f"what {name}-{kind} reads")


@pytest.mark.parametrize("database", SERVERS, indirect=True)
@pytest.mark.parametrize("age", [0, None])
def test_cut_connections_do_not_fail_tasks(
    database: ProjectDatabase, age: int | None, tmp_path: Path
) -> None:
    """A process with a persistent connection notices that it was closed; the number of connections does
    not grow."""
    package = tmp_path / "counted"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(SHARED)
    apps = ["django.contrib.auth", "django.contrib.contenttypes", "qworker.django", "counted"]
    settings = with_options(database, CONN_MAX_AGE=age, CONN_HEALTH_CHECKS=False)
    with site_on(tmp_path, database, {"workers": 1}, INSTALLED_APPS=apps, **settings) as site:
        cluster = site.start()
        each_way(site, "first", "plain")
        site.drained()
        before = site.until(lambda: len(database.connections()), "connections")
        for kind in ("shared", "async", "plain"):
            database.sever()
            each_way(site, f"{kind}-first", kind)
        site.send_many("read_rows", [(f"many-{number}",) for number in range(40)])
        site.drained()
        assert len(site.tasks(success=True)) == 48, cluster.log
        site.until(lambda: len(database.connections()) <= before, "as many connections as before")
        assert site.do("answer = Task.objects.filter(success=False).count()") == 0, cluster.log
        cluster.stop()


THREADS = """
import gc, os, threading
from qworker.django.brokers import get_broker
from qworker.django.status import Stat
from qworker.django.tasks import async_iter, count_group, queue_size, result

calls = {
    "async_task": lambda: async_task("math.sqrt", 4, group="all"),
    "async_iter": lambda: async_iter("math.sqrt", [4, 9]),
    "schedule": lambda: schedule("math.sqrt", 4),
    "fetch": lambda: fetch("nothing"),
    "result": lambda: result("nothing", wait=20),
    "count_group": lambda: count_group("all"),
    "queue_size": queue_size,
    "lock_size": lambda: get_broker().lock_size(),
    "Stat.get_all": Stat.get_all,
}

def files():
    return len(os.listdir("/proc/self/fd"))

def grown(call):
    before = files()
    for _ in range(10):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        # Connections are in cycles, and SQLite keeps as many files for later as were open at one time:
        # without this, their number would depend on when Python looks for garbage.
        gc.collect()
        gc.collect()  # a connection of SQLite is garbage of its own once Django's is gone
    return files() - before

gc.disable()
gc.freeze()  # nothing of all modules has to be looked at each time
for call in calls.values():
    grown(call)  # what is opened once
gc.freeze()
answer = {name: more for name, call in calls.items() if (more := grown(call)) >= 10}
"""


def test_ended_threads_leave_no_connections(database: ProjectDatabase, tmp_path: Path) -> None:
    """Django opens connections per thread; they are closed when the thread is gone."""
    with site_on(tmp_path, database, **with_options(database, CONN_MAX_AGE=None)) as site:
        assert site.do(THREADS) == {}


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_enqueuing_opens_no_additional_connection(database: ProjectDatabase, tmp_path: Path) -> None:
    with site_on(tmp_path, database) as site:
        open_ones = site.do(
            """
            from django.db import connection
            asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            def count():
                with connection.cursor() as cursor:
                    cursor.execute(asked)
                    return cursor.fetchone()[0]
            before = count()
            async_task("math.sqrt", 4)
            answer = [before, count()]
            """
        )
        assert open_ones == [1, 1]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_program_that_ran_a_cluster_keeps_no_connection_of_ours(
    database: ProjectDatabase, tmp_path: Path
) -> None:
    """Tests drop their database then. In a transaction, as in a TestCase, the command is refused, since it
    used to close the connection, which failed the rest of the test."""
    with site_on(tmp_path, database) as site:
        answers = site.do(
            """
            from django.core.management import CommandError, call_command
            from django.db import connection, transaction
            asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            def count():
                with connection.cursor() as cursor:
                    cursor.execute(asked)
                    return cursor.fetchone()[0]
            identity = async_task("math.sqrt", 4)
            call_command("qcluster", run_once=True)
            answer = [result(identity), count()]
            with transaction.atomic():
                try:
                    call_command("qcluster", run_once=True)
                except CommandError as error:
                    answer += ["TransactionTestCase" in str(error), count()]
            """
        )
        assert answers == [2, 1, True, 1]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_connection_pool_is_not_shared_between_processes(database: ProjectDatabase, tmp_path: Path) -> None:
    """With Django's pool for PostgreSQL: each process has its own, and replaces connections that were cut."""
    options = {"pool": {"min_size": 1, "max_size": 3, "timeout": 10}}
    with site_on(
        tmp_path, database, **with_options(database, OPTIONS=options, CONN_HEALTH_CHECKS=True)
    ) as site:
        cluster = site.start()
        for turn in range(3):
            site.send_many("read_rows", [(f"{turn}-{number}",) for number in range(20)])
            site.send_many("read_rows_async", [(f"{turn}-async-{number}",) for number in range(5)])
            site.drained()
            database.sever()
        site.send_many("write_row", [(f"last-{number}",) for number in range(10)])
        site.check()
        assert all(row["success"] for row in site.tasks()), cluster.log
        cluster.stop()


def test_transaction_left_open_by_a_task_is_rolled_back(database: ProjectDatabase, tmp_path: Path) -> None:
    """And reported; results and the rows of other tasks are kept."""
    with site_on(tmp_path, database, {"workers": 1}, **with_options(database, CONN_MAX_AGE=None)) as site:
        cluster = site.start()
        for number, name in enumerate(("leave_transaction", "leave_autocommit_off")):
            site.send(name, name, hook=f"{TASKS}.told")
            site.send("write_row", f"row-{number}")
            site.until(lambda number=number: site.ends(f"row-{number}"), "a row after that")
        site.check(once=True)
        names = site.do(
            "from django.contrib.auth.models import Group\n"
            "answer = sorted(Group.objects.values_list('name', flat=True))"
        )
        assert names == ["row-0", "row-1"]
        assert cluster.log.count("left a transaction open") == 2
        cluster.stop()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_queries_are_not_accumulated(database: ProjectDatabase, tmp_path: Path) -> None:
    """With DEBUG: Django's query log is reset before each task."""
    settings = with_options(database, CONN_MAX_AGE=None)
    with site_on(tmp_path, database, {"workers": 1}, DEBUG=True, **settings) as site:
        ids = site.send_many("queries", [(str(number),) for number in range(4)])
        cluster = site.start()
        site.check(once=True)
        counts = [site.do(f"answer = result({task_id!r})") for task_id in ids]
        assert counts[1:] == [1] * 3  # the first one includes connection setup
        cluster.stop()


@pytest.mark.parametrize(
    ("database", "orm"),
    [("sqlite", "default"), ("postgresql", "default"), ("mysql", "default"), ("postgresql", "tasks")],
    indirect=["database"],
)
def test_tasks_and_queue_in_two_databases(database: ProjectDatabase, orm: str, tmp_path: Path) -> None:
    """A router keeps tasks and schedules in one; the queue is in either."""
    other = ProjectDatabase("sqlite", tmp_path / "..")
    other.file = tmp_path / "tasks.db"
    other.settings["NAME"] = str(other.file)
    settings: dict[str, Any] = {
        "DATABASES": {"default": database.settings, "tasks": other.settings},
        "DATABASE_ROUTERS": ["tests.acceptance.django_routers.TasksApart"],
    }
    with site_on(tmp_path, database, {"orm": orm}, **settings) as site:
        site.do(
            "from django.core.management import call_command\n"
            "call_command('migrate', database='tasks', verbosity=0)"
        )
        cluster = site.start()
        go = tmp_path / "go"
        site.send_many("work", [(str(number),) for number in range(20)], hook=f"{TASKS}.told")
        site.send("until_file", "long", str(go))
        site.do(f"Schedule.objects.create(name='due', func='{TASKS}.work', args=\"'scheduled'\", repeats=1)")
        site.started("long")
        cluster.kill()
        second = site.start("two")
        site.started("long", times=2)
        go.touch()
        scheduled = site.until(
            lambda: [row["id"] for row in site.tasks(group="due", success=True)], "the scheduled task"
        )
        site.ids["scheduled"] = scheduled[0]
        site.check()
        with closing(sqlite3.connect(other.file)) as connection:
            assert connection.execute("SELECT count(*) FROM qworker_task").fetchone() == (22,)
        assert database.rows("SELECT count(*) FROM qworker_task")[0][0] == 0
        second.stop()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_eight_processes_write_to_one_sqlite_file(database: ProjectDatabase, tmp_path: Path) -> None:
    with site_on(tmp_path, database, {"workers": 8}) as site:
        site.send_many("write_row", [(f"row-{number}",) for number in range(160)])
        cluster = site.start()
        site.check(once=True)
        assert site.database.rows("SELECT count(*) FROM auth_group") == [(160,)]
        assert "locked" not in cluster.log
        cluster.stop()
