"""Programs that start a cluster themselves: how it ends, and what it leaves unchanged in the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

SETUP = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from django.conf import settings
settings.configure(
    SECRET_KEY="a key that only tests know, as long as Django wants it",
    USE_TZ=True,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "qworker.django"],
    DATABASES={name: {"ENGINE": "django.db.backends.sqlite3", "NAME": place, "OPTIONS": {"timeout": 20}}
               for name, place in (("default", sys.argv[1]), ("other", sys.argv[1] + ".other"))},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    Q_CLUSTER={"name": "programs", "workers": 1, "recycle": 2, "log_level": "CRITICAL"},
)
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("migrate", verbosity=0, database="other")
from django.contrib.auth.models import User
from django.db import transaction
from qworker.django.cluster import Cluster
from qworker.django.tasks import async_task, result
cluster = Cluster()
"""


def program(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SETUP + textwrap.dedent(code), str(tmp_path / "db.sqlite3")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(tmp_path: Path, code: str) -> str:
    out, err = program(tmp_path, code).communicate(timeout=100)
    assert err == ""
    return out.strip()


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii")
        return state.rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("end", ["time.sleep(600)", ""], ids=["busy", "at its end"])
def test_cluster_ends_with_the_program_that_started_it(
    tmp_path: Path, number: signal.Signals, end: str
) -> None:
    running = program(tmp_path, f"print(cluster.start(), flush=True)\n{end}")
    assert running.stdout is not None
    cluster = int(running.stdout.readline())
    assert is_running(cluster)
    running.send_signal(number)
    running.communicate(timeout=60)
    until(lambda: not is_running(cluster))


def test_program_keeps_its_own_signal_handler(tmp_path: Path) -> None:
    code = """
        signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
        cluster.start()
        os.kill(os.getpid(), signal.SIGTERM)
        print(cluster.is_running, cluster.stop(), cluster.has_stopped)
    """
    assert run_program(tmp_path, code) == "mine\nTrue True True"


def test_open_transaction_of_the_caller_is_not_affected(tmp_path: Path) -> None:
    code = """
        with transaction.atomic("other"):
            User.objects.using("other").create(username="before")
            cluster.start()
            User.objects.using("other").create(username="after")
        print(*sorted(User.objects.using("other").values_list("username", flat=True)))
        print(result(async_task("math.floor", 2.5), wait=60000))
        cluster.stop()
    """
    assert run_program(tmp_path, code) == "after before\n2"


def test_start_within_a_transaction_on_the_broker_database_is_refused(tmp_path: Path) -> None:
    code = """
        from qworker.errors import ConfigurationError
        try:
            with transaction.atomic():
                cluster.start()
        except ConfigurationError as error:
            print("SQLite" in str(error), cluster.sentinel)
    """
    assert run_program(tmp_path, code) == "True None"


def test_recycled_workers_are_counted_as_reincarnations(tmp_path: Path) -> None:
    code = """
        cluster.start()
        for number in range(5):
            result(async_task("math.floor", number), wait=60000)
        deadline = time.monotonic() + 60
        while cluster.stat.reincarnations < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        print(cluster.stat.reincarnations)
        cluster.stop()
    """
    assert run_program(tmp_path, code) == "2"


def test_enqueuing_works_in_tests_with_an_in_memory_database(tmp_path: Path) -> None:
    code = """
        from django.test.utils import setup_test_environment
        from django.test.runner import DiscoverRunner
        from django.core import mail
        from qworker.django.brokers import get_broker
        from qworker.django.models import OrmQ
        from qworker.django.status import Stat
        from qworker.django.tasks import fetch, queue_size
        from qworker.errors import ConfigurationError
        runner = DiscoverRunner(verbosity=0)
        databases = runner.setup_databases(aliases={"default"})
        from django.db import connections
        assert connections["default"].is_in_memory_db()
        task = async_task("math.floor", 2.5)
        with transaction.atomic():
            async_task("math.floor", 3.5)
            transaction.set_rollback(True)
        print(queue_size(), OrmQ.objects.count(), OrmQ.objects.get().task_id() == task, fetch(task))
        print(get_broker().lock_size(), get_broker().ping(), Stat.get_all())
        call_command("qinfo", stdout=open(os.devnull, "w"))
        try:
            Cluster().start()
        except ConfigurationError as error:
            print("in memory" in str(error))
        print(result(async_task("math.floor", 4.5, sync=True)))
        print(get_broker().purge_queue(), queue_size())
        runner.teardown_databases(databases)
    """
    assert run_program(tmp_path, code) == "1 1 True None\n0 True []\nTrue\n4\n1 0"


SETTINGS = """
SECRET_KEY = "a key that only tests know, as long as Django wants it"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "qworker.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.db"}}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
Q_CLUSTER = {"name": "shop", "workers": 1}
"""
ENQUEUE = """
import django
django.setup()
from qworker.django.tasks import async_task
async_task("json.loads", "{")
"""


def test_failure_is_logged_once_and_commands_point_to_the_admin(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(SETTINGS, encoding="utf-8")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]),
    }

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run("-m", "django", "migrate", "-v0")
    run("-c", ENQUEUE)
    log = run("-m", "django", "qcluster", "--run-once")
    assert log.count("Failed 'json.loads'") == log.count("Traceback") == 1
    assert "raised after" not in log
    assert "qworker.django.models.Failure" in run("-m", "qworker", "failed", "list")
    found = run("-m", "qworker", "doctor")
    assert "start one: python manage.py qcluster" in found
    assert "has no tasks" not in found
    assert "in the project's database" in found
