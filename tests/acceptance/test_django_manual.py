"""The manual's statements about functions, schedules and clusters, with a running cluster, on each broker."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.django_place import DjangoPlace
from tests.support.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

TASKS = """
import os
import time
from pathlib import Path

from django.dispatch import receiver

from qworker.django.signals import post_execute, post_execute_in_worker, post_spawn, pre_enqueue, pre_execute

HERE = Path(__file__).resolve().parent


def note(name, text):
    with (HERE / name).open("a") as file:
        file.write(f"{text}\\n")


def hooked(task):
    note("hooks", f"{task.name} {task.success} {task.result!s:.30}".replace("\\n", " "))


def fails(word):
    raise LookupError(word)


def hold(name):
    note("held", name)
    while not (HERE / name).exists():
        time.sleep(0.02)
    return name


def process():
    return os.getpid()


def forever():
    while True:
        time.sleep(0.1)


@receiver(post_spawn)
def spawned(sender, proc_name, **_):
    note("signals", f"post_spawn {sender} {proc_name}")


@receiver(pre_execute)
def before(sender, func, task, **_):
    note("signals", f"pre_execute {sender} {callable(func)} {task['name']}")


@receiver(post_execute_in_worker)
def after(sender, func, task, **_):
    note("signals", f"post_execute_in_worker {sender} {callable(func)} {task['name']} {task['success']}")


@receiver(post_execute)
def ended(sender, task, **_):
    note("signals", f"post_execute {sender} {task['name']} {task['success']}")
"""
SCRIPT = """
import tasks
from datetime import timedelta

from django.utils import timezone
from qworker.django.conf import conf
from qworker.django.signals import pre_enqueue
from qworker.django.status import Stat

PATIENCE = 60_000

# -- one --
identity = async_task("math.copysign", 2, -2, task_name="sign", hook="tasks.hooked")
found["forever"] = [result(identity, wait=-1), result("sign"), fetch("sign").id == identity]
falsy = async_task("copy.copy", 0)
found["falsy"] = result(falsy, wait=PATIENCE)
failed = fetch(async_task("tasks.fails", "why", task_name="bad", hook="tasks.hooked"), wait=PATIENCE)
found["failed"] = [failed.success, failed.result.startswith("why"), failed.cluster == conf.prefix]
begun = time.monotonic()
found["late"] = [result("0" * 32, wait=300), 0.3 <= time.monotonic() - begun < 30]
killed = fetch(async_task("tasks.forever", timeout=1, task_name="slow", hook="tasks.hooked"), wait=PATIENCE)
found["timeout"] = [killed.success, killed.result]
one = [result(async_task("tasks.process"), wait=PATIENCE) for _ in range(2)]
found["process"] = os.getpid() not in one

# -- the cache --
cached = async_task("math.floor", 100.5, cached=60)
found["cached"] = [result(cached, wait=PATIENCE, cached=True), result(cached)]

# -- groups --
for number in range(4):
    async_task("math.modf", number, group="modf")
async_task("tasks.fails", "x", group="modf")
found["group"] = [sorted(result_group("modf", count=5)), len(fetch_group("modf", count=5, wait=PATIENCE)),
                  count_group("modf"), count_group("modf", failures=True)]
for number in range(20):
    async_task("math.frexp", number, group="frexp", cached=True)
found["cached group"] = len(result_group("frexp", count=20, cached=True))
found["deleted"] = [delete_group("frexp", tasks=True, cached=True), delete_group("modf", tasks=True)]

# -- iterables and chains --
whole = async_iter("math.floor", [number / 2 for number in range(100)])
found["iter"] = sorted(result(whole, wait=PATIENCE)) == [number // 2 for number in range(100)]
i = Iter("math.copysign", args=[(1, -1), (2, -1)], cached=True)
i.run()
found["cached iter"] = sorted(i.result(wait=PATIENCE))
chain = Chain(cached=True)
chain.append("math.copysign", 1, -1)
chain.append("math.floor", 1)
chain.run()
found["chain"] = [sorted(chain.result(wait=PATIENCE)), chain.current()]
links = async_chain([("math.copysign", (1, -1)), ("math.floor", (1,))])
found["plain chain"] = sorted(result_group(links, count=2))

# -- schedules --
schedule("math.hypot", 3, 4, name="once", hook="tasks.hooked", q_options={"task_name": "scheduled"})
missed = timezone.now() - timedelta(hours=1.5)
schedule("math.hypot", 3, 4, name="hourly", schedule_type="H", repeats=2, next_run=missed)
once = until(lambda: fetch("scheduled")).group
found["once"] = [once, until(lambda: not Schedule.objects.filter(name="once"))]
until(lambda: count_group("hourly") == 2)
until(lambda: Schedule.objects.get(name="hourly").repeats == 0)
row = Schedule.objects.get(name="hourly")
found["hourly"] = [row.success(), row.task in {task.id for task in fetch_group("hourly")}]

# -- clusters --
(stat,) = [each for each in Stat.get_all() if each.name.startswith(conf.prefix)]
found["stat"] = {
    "status": until(lambda: Stat.get(stat.cluster_id).status == "Idle"),
    "workers": len(stat.workers), "born": stat.tob <= timezone.now(), "uptime": stat.uptime() > 0,
    "empty": Stat.get(stat.pid, stat.cluster_id).empty_queues(),
    "same": Stat.get(str(stat.cluster_id), get_broker()).pid == stat.pid == stat.sentinel,
    "unknown": Stat.get(99999999).status,
}
found["restarts"] = until(lambda: Stat.get(stat.cluster_id).reincarnations)
found["pid"] = stat.pid

# -- what ran twice --
from qworker.django.transports.task_rows import save

again = dict(id="7" * 32, name="again", func="f", args=(), kwargs={}, started=timezone.now(),
             stopped=timezone.now(), attempt_count=1)
said = []
for success, value in ((False, "first"), (False, "second"), (True, "third"), (False, "no"), (True, "no")):
    save({**again, "success": success, "result": value})
    said.append(result("again"))
found["again"] = [*said, fetch("again").success]

# -- a package of others --
from qworker.django.conf import Conf
Conf.SECRET_KEY = "of somebody else, and as long as Django wants keys to be: fifty characters"
stranger = async_task("math.sqrt", 4)
del Conf.SECRET_KEY
mine = async_task("math.sqrt", 9)
found["signed"] = [result(mine, wait=PATIENCE), fetch(stranger, wait=200)]
until(lambda: queue_size() == 0)
found["hooks"] = sorted((tasks.HERE / "hooks").read_text().splitlines())
found["signals"] = (tasks.HERE / "signals").read_text().splitlines()
"""


@pytest.fixture(
    scope="module",
    params=cases(["sqlite", "postgresql", "mysql", "redis"], ["sqlite", "postgresql", "redis"]),
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DjangoPlace]:
    directory = tmp_path_factory.mktemp("project")
    made = DjangoPlace(directory, request.param, {"tasks": TASKS}, apps=["tasks"])
    yield made
    made.clear()


@pytest.fixture(scope="module")
def found(place: DjangoPlace) -> dict[str, Any]:
    with place.cluster():
        said: dict[str, Any] = place.script(SCRIPT)
    return said


def test_results_are_waited_for_by_id_and_name(found: dict[str, Any]) -> None:
    assert found["forever"] == [-2, -2, True]
    assert found["falsy"] == 0
    assert found["late"] == [None, True]
    assert found["process"] is True


def test_failure_is_stored_as_a_result(found: dict[str, Any]) -> None:
    assert found["failed"] == [False, True, True]


def test_timed_out_task_is_ended_and_its_worker_replaced(
    found: dict[str, Any],
) -> None:
    success, text = found["timeout"]
    assert success is False
    assert text.startswith("TimeLimitExceeded: it took longer than ")
    assert found["restarts"] >= 1


def test_hooks_are_called_after_every_outcome(found: dict[str, Any]) -> None:
    said = found["hooks"]
    assert [line.split()[:2] for line in said] == [
        ["bad", "False"], ["scheduled", "True"], ["sign", "True"], ["slow", "False"]
    ]  # fmt: skip


def test_cached_results_are_not_in_the_database(found: dict[str, Any]) -> None:
    assert found["cached"] == [100, None]
    assert found["cached group"] == 20


def test_groups_count_failures_and_return_results(found: dict[str, Any]) -> None:
    assert found["group"] == [[[0, 0], [0, 1], [0, 2], [0, 3]], 5, 5, 1]
    assert found["deleted"] == [20, 5]


def test_iterables_have_one_result_and_chains_a_group(found: dict[str, Any]) -> None:
    assert found["iter"] is True
    assert found["cached iter"] == [-2, -1]
    assert found["chain"] == [[-1, 1], 2]
    assert found["plain chain"] == [-1, 1]


def test_schedules_run_count_down_and_are_deleted(found: dict[str, Any]) -> None:
    assert found["once"] == ["once", True]
    assert found["hourly"] == [True, True]


def test_cluster_status_is_published(found: dict[str, Any]) -> None:
    stat = found["stat"]
    assert stat == {
        "status": True, "workers": 2, "born": True, "uptime": True, "empty": True, "same": True,
        "unknown": "Stopped",
    }  # fmt: skip


def test_package_signed_with_another_key_is_not_run(place: DjangoPlace, found: dict[str, Any]) -> None:
    assert found["signed"] == [3, None]


def test_latest_run_is_stored_unless_an_earlier_one_succeeded(found: dict[str, Any]) -> None:
    assert found["again"] == ["first", "second", "third", "third", "third", True]


def test_signals_are_sent_in_the_workers(found: dict[str, Any]) -> None:
    said = found["signals"]
    assert {"post_spawn django_q worker 1", "post_spawn django_q worker 2"} <= set(said)
    assert "pre_execute django_q True sign" in said
    assert "post_execute_in_worker django_q True sign True" in said
    assert "post_execute django_q sign True" in said
    assert "post_execute django_q bad False" in said


def test_cluster_logs_the_messages_of_the_manual(place: DjangoPlace, found: dict[str, Any]) -> None:
    begins, ends = r"\d\d:\d\d:\d\d \[Q\] INFO Q Cluster .* starting\.", r"Q Cluster .* has stopped\."
    of_the_cluster = [
        begins,
        rf"monitoring at {found['pid']}",
        rf"guarding cluster .* at {found['pid']}",
        rf"pushing tasks at {found['pid']}",
        r"Q Cluster .* running\.",
        r"Q Cluster .* stopping\.",
        r"stopping cluster processes",
        r"stopped pushing tasks",
        r"worker \d stopped doing work",
        r"stopped monitoring results",
        ends,
    ]
    of_a_worker = [
        begins,
        r"worker \d ready for work at \d+",  # processes log independently: may come after "running"
        r"Processed 'math.copysign' \(sign\)",
        r"worker \d stopped doing work",
        ends,
    ]
    text = place.log
    for order in (of_the_cluster, of_a_worker):
        at = 0
        for pattern in order:
            line = re.compile(pattern).search(text, at)
            assert line is not None, (pattern, text)
            at = line.end()
    assert len(re.findall("stopped doing work", text)) >= 2


def test_stopping_cluster_finishes_running_tasks_and_leaves_the_rest(place: DjangoPlace) -> None:
    place.configure(queue_limit=20)
    with place.cluster() as process:
        ids = place.script(
            """
import tasks
found["ids"] = [async_task("tasks.hold", f"go{number}") for number in range(6)]
until(lambda: (tasks.HERE / "held").exists() and len((tasks.HERE / "held").read_text().split()) == 2)
"""
        )["ids"]
        process.send_signal(signal.SIGINT)  # Ctrl-C
        until(lambda: "stopping." in place.log)
        for number in range(6):
            (place.directory / f"go{number}").touch()
        assert process.wait(60) == 0, place.log
    said = place.script(
        f"found['ended'] = [fetch(each) is not None for each in {ids}]; found['left'] = queue_size()"
    )
    assert said == {"ended": [True, True, False, False, False, False], "left": 4}
    place.manage("qcluster", "--run-once")
    said = place.script(f"found['ended'] = [result(each) for each in {ids}]")
    assert said["ended"] == [f"go{number}" for number in range(6)]
