"""Clusters: started by a program, several on one queue, several queues, and the effect of their settings."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_place import DjangoPlace
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(180)]

TASKS = """
import multiprocessing
import os
import sys
import time
from pathlib import Path

from qworker.django.brokers import Broker

HERE = Path(__file__).resolve().parent


def process(*_):
    return os.getpid()


def parts_of_a_worker(*_):
    return sorted({"qworker.components.assembly", "qworker.components.receiving.listener"} & set(sys.modules))


def meet():
    (HERE / f"{os.getpid()}.here").touch()
    while len(list(HERE.glob("*.here"))) < 2:
        time.sleep(0.02)
    return os.getpid()


def hold():
    (HERE / "held").touch()
    while not (HERE / "go").exists():
        time.sleep(0.02)
    return "done"


def _child(queue):
    queue.put(os.getpid())


def parent():
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=_child, args=(queue,))
    child.start()
    found = queue.get(timeout=30)
    child.join()
    return [os.getpid(), found]


def fails():
    with (HERE / "tries").open("a") as file:
        file.write("x")
    raise LookupError("as always")


def stays():
    with (HERE / "stays").open("a") as file:
        file.write("x")
    time.sleep(60)


def counts_ends(task):
    with (HERE / "ends").open("a") as file:
        file.write("x")


class Files(Broker):
    '''Packages are files of a directory; those that are taken have another ending.'''

    @staticmethod
    def get_connection(list_key=None):
        directory = HERE / "queue" / list_key
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def enqueue(self, task):
        name = f"{len(list(self.connection.iterdir())):08d}-{os.urandom(4).hex()}"
        (self.connection / f"{name}.tmp").write_text(task)
        (self.connection / f"{name}.tmp").rename(self.connection / f"{name}.task")
        return name

    def dequeue(self):
        for path in sorted(self.connection.glob("*.task"))[:1]:
            taken = path.with_suffix(".taken")
            path.rename(taken)
            return [(taken.name, taken.read_text())]

    def acknowledge(self, task_id):
        (self.connection / task_id).unlink()

    def fail(self, task_id):
        (self.connection / task_id).rename(HERE / "failed")

    def queue_size(self):
        return len(list(self.connection.glob("*.task")))

    def lock_size(self):
        return len(list(self.connection.glob("*.taken")))

    def purge_queue(self):
        for path in self.connection.iterdir():
            path.unlink()

    def info(self):
        return "Files 1.0"
"""


def place(directory: Path, **cluster: Any) -> DjangoPlace:
    return DjangoPlace(directory, "sqlite", {"tasks": TASKS}, **cluster)


def test_cluster_object_starts_and_stops(tmp_path: Path) -> None:
    found = place(tmp_path, timeout=50).script(
        """
import socket

from qworker.django.cluster import Cluster
from qworker.django.status import Stat

cluster = Cluster(get_broker())


def states():
    return [cluster.is_starting, cluster.is_running, cluster.is_stopping, cluster.has_stopped]


found["new"] = [cluster.sentinel, cluster.start_event, cluster.stop_event, cluster.pid == os.getpid(),
                *states()]
found["about"] = [cluster.host == socket.gethostname(), cluster.timeout, len(cluster.name.split("-"))]
found["stopped before"] = [cluster.stop(), cluster.stat.status]
pid = cluster.start()
found["started"] = [pid == cluster.pid == cluster.sentinel.pid != os.getpid(), cluster.start_event.is_set(),
                    cluster.stop_event.is_set(), *states()]
found["twice"] = cluster.start() == pid
found["works"] = result(async_task("tasks.process"), wait=-1) not in (pid, os.getpid())
found["stat"] = [until(lambda: cluster.stat.status in ("Idle", "Working")), cluster.stat().pid == pid,
                 cluster.stat.cluster_id == cluster.cluster_id, until(lambda: len(cluster.stat.workers) == 2)]
found["stop"] = [cluster.stop(), cluster.start_event, cluster.stop_event, *states(), cluster.stop()]
found["after"] = [cluster.stat.status, cluster.sentinel.exitcode]
"""
    )
    assert found == {
        "new": [None, None, None, True, False, False, False, False],
        "about": [True, 50, 4],
        "stopped before": [False, "Stopped"],
        "started": [True, True, False, False, True, False, False],
        "twice": True,
        "works": True,
        "stat": [True, True, True, True],
        "stop": [True, None, None, False, False, False, True, False],
        "after": ["Stopped", 0],
    }


def test_clusters_sharing_a_queue_run_each_task_once(tmp_path: Path) -> None:
    project = place(tmp_path, workers=1, queue_limit=1)
    with project.cluster(), project.cluster(log="second.log"):
        found = project.script(
            """
from qworker.django.status import Stat

until(lambda: len(Stat.get_all()) == 2)
whole = async_iter("tasks.process", range(200))
pids = result(whole, wait=-1)
workers = until(lambda: len(pids := {pid for stat in Stat.get_all() for pid in stat.workers}) == 2 and pids)
found["calls"] = [len(pids), set(pids) <= workers]
both = async_iter("tasks.meet", [(), ()])
found["both"] = set(result(both, wait=-1)) == workers
"""
        )
    assert found == {"calls": [200, True], "both": True}


def test_alternative_cluster_has_its_own_queue_and_settings(tmp_path: Path) -> None:
    project = place(tmp_path, ALT_CLUSTERS={"long": {"workers": 1, "timeout": 7}})
    project.script(
        """
async_task("tasks.process", task_name="mine")
async_task("tasks.process", task_name="theirs", cluster="long")
schedule("tasks.process", cluster="long", q_options={"task_name": "scheduled"})
"""
    )
    with project.cluster("--name", "long"):
        found = project.script(
            """
from qworker.django.status import Stat

theirs = until(lambda: fetch("theirs"))
found["theirs"] = [theirs.cluster, until(lambda: fetch("scheduled")).cluster]
found["mine"] = [fetch("mine"), queue_size(), until(lambda: len(Stat.get_all()[0].workers))]
"""
        )
    assert found == {"theirs": ["long", "long"], "mine": [None, 1, 1]}
    assert "[long] running." in project.log


def test_recycle_replaces_workers(tmp_path: Path) -> None:
    project = place(tmp_path, workers=1, recycle=3)
    with project.cluster():
        found = project.script(
            'found["pids"] = [result(async_task("tasks.process"), wait=-1) for _ in range(7)]'
        )
    pids = found["pids"]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] == pids[5] != pids[6]


def test_tasks_can_start_processes_without_daemonize_workers(tmp_path: Path) -> None:
    project = place(tmp_path, daemonize_workers=False)
    with project.cluster():
        found = project.script('found["pids"] = result(async_task("tasks.parent"), wait=-1)')
    assert len(set(found["pids"])) == 2


def test_workers_do_not_import_the_cluster_modules(tmp_path: Path) -> None:
    project = place(tmp_path)
    with project.cluster():
        found = project.script('found["loaded"] = result(async_task("tasks.parts_of_a_worker"), wait=-1)')
    assert found == {"loaded": []}


def test_run_once_sends_due_schedules(tmp_path: Path) -> None:
    project = place(tmp_path)
    project.script('schedule("tasks.process", name="due", schedule_type=Schedule.HOURLY)')
    project.manage("qcluster", "--run-once")
    found = project.script('found["left"] = [Task.objects.filter(success=True).count(), queue_size()]')
    assert found == {"left": [1, 0]}


def test_nothing_is_sent_without_a_scheduler(tmp_path: Path) -> None:
    project = place(tmp_path, scheduler=False)
    project.script('schedule("tasks.process", name="idle")')
    project.manage("qcluster", "--run-once")
    found = project.script('found["left"] = [Schedule.objects.count(), Task.objects.count(), queue_size()]')
    assert found == {"left": [1, 0, 0]}


def test_failure_without_ack_is_retried_until_max_attempts(tmp_path: Path) -> None:
    project = place(tmp_path, ack_failures=False, max_attempts=6, retry=0.1)
    with project.cluster():
        found = project.script(
            """
import tasks

identity = async_task("tasks.fails", hook="tasks.counts_ends")
task = until(lambda: (found := fetch(identity)) and found.attempt_count == 6 and found)
until(lambda: (tasks.HERE / "ends").exists())
found["task"] = [task.success, (tasks.HERE / "tries").read_text(), (tasks.HERE / "ends").read_text()]
once = fetch(async_task("tasks.fails", ack_failure=True), wait=-1)
found["once"] = [once.success, once.attempt_count]
until(lambda: queue_size() == 0)
"""
        )
    assert found == {"task": [False, "xxxxxx", "x"], "once": [False, 1]}


def test_timeout_without_ack_is_retried_until_max_attempts(tmp_path: Path) -> None:
    project = place(tmp_path, ack_failures=False, max_attempts=2, retry=1, timeout=0.5)
    with project.cluster():
        found = project.script(
            """
import tasks

identity = async_task("tasks.stays", hook="tasks.counts_ends")
task = until(lambda: (found := fetch(identity)) and found.attempt_count == 2 and found)
found["task"] = [task.success, task.attempt_count, task.result, (tasks.HERE / "stays").read_text()]
until(lambda: queue_size() == 0 and (tasks.HERE / "ends").exists())
found["hooked"] = (tasks.HERE / "ends").read_text()
once = fetch(async_task("tasks.stays", ack_failure=True), wait=-1)
found["once"] = [once.success, once.attempt_count]
"""
        )
    expected = "TimeLimitExceeded: it took longer than 0.5 s"
    assert found == {"task": [False, 2, expected, "xx"], "hooked": "x", "once": [False, 1]}


def test_cached_failure_is_readable_before_its_retry(tmp_path: Path) -> None:
    with (project := place(tmp_path, ack_failures=False, retry=3600)).cluster():
        found = project.script(
            """
identity = async_task("tasks.fails", cached=True, group="cached")
task = until(lambda: fetch(identity, cached=True))
count = until(lambda: count_group("cached", cached=True))
found["task"] = [task.success, task.attempt_count, count]
"""
        )
    assert found == {"task": [False, 1, 1]}


def test_custom_broker_class_is_used(tmp_path: Path) -> None:
    project = place(tmp_path, broker_class="tasks.Files")
    with project.cluster():
        found = project.script(
            """
from qworker.django.brokers import get_broker
from qworker.django.status import Stat

broker = get_broker()
found["info"] = [type(broker).__name__, broker.info(), get_broker("other").list_key]
found["result"] = result(async_task("math.sqrt", 9, broker=broker), wait=-1)
broker.enqueue("no package at all")
until(lambda: broker.queue_size() + broker.lock_size() == 0)
import tasks
found["failed"] = until(lambda: (tasks.HERE / "failed").exists())
(stat,) = until(lambda: [stat for stat in Stat.get_all() if len(stat.workers) == 2])
found["stat"] = stat.status in ("Idle", "Working")
"""
        )
    assert found == {
        "info": ["Files", "Files 1.0", "other"], "result": 3, "failed": True, "stat": True
    }  # fmt: skip


def test_save_limit_keeps_newest_successes_and_all_failures(tmp_path: Path) -> None:
    project = place(tmp_path, save_limit=5)
    with project.cluster():
        found = project.script(
            """
for number in range(20):
    async_task("math.sqrt", number, group="g")
    async_task("tasks.fails")
until(lambda: queue_size() == 0 and get_broker().lock_size() == 0)
found["kept"] = [until(lambda: Success.objects.count() == 5), Failure.objects.count()]
"""
        )
    assert found == {"kept": [True, 20]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_the_process_group_stops_the_cluster(tmp_path: Path, number: int) -> None:
    """Sent by supervisor with ``stopasgroup``, and by a terminal."""
    project = place(tmp_path)
    with project.cluster() as process:
        identity = project.script(
            """
import tasks

found["id"] = async_task("tasks.hold")
until(lambda: (tasks.HERE / "held").exists())
"""
        )["id"]
        os.killpg(process.pid, number)
        until(lambda: "stopping." in project.log)
        (tmp_path / "go").touch()
        assert process.wait(60) == 0, project.log
    assert project.script(f"found['result'] = result({identity!r})") == {"result": "done"}
