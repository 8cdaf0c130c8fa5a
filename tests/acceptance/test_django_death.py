"""Clusters of a Django project whose processes are killed, in each state; on each kind of database, and
with Redis as the broker."""

from __future__ import annotations

import pytest

from tests.acceptance.django_site import DjangoSite
from tests.acceptance.processes import kill

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]


def test_main_process_is_killed_while_tasks_run(django_anywhere: DjangoSite) -> None:
    """Running tasks run again in another cluster, waiting ones run there, and each has one success."""
    site = django_anywhere
    first = site.start()
    go = site.path / "go"
    site.send_many("until_file", [(f"long-{number}", str(go)) for number in range(2)])
    site.send_many("work", [(f"short-{number}",) for number in range(40)])
    site.started("long-0")
    site.started("long-1")
    first.kill()
    second = site.start("two")
    site.started("long-0", times=2)
    site.started("long-1", times=2)
    go.touch()
    site.check()
    assert all(site.starts(f"short-{number}") == 1 for number in range(40))
    second.stop()


def test_child_is_killed_while_its_task_runs(django_anywhere: DjangoSite) -> None:
    """The task runs again at once in the same cluster, and its hook is called once."""
    site = django_anywhere
    cluster = site.start()
    task_id = site.send("die", "victim", str(site.path / "died"), hook="tests.acceptance.django_tasks.told")
    site.check()
    assert site.starts("victim") == 2
    assert site.ends(f"hook-{task_id}-success") == 1
    cluster.stop()


def test_idle_processes_are_killed(django_site: DjangoSite) -> None:
    """The pool, and its forking process: all are replaced, and tasks run as before."""
    site = django_site
    cluster = site.start()
    for number, victims in enumerate([cluster.wait_pool, lambda: [cluster.zygote()]]):
        before = set(cluster.wait_pool())
        for pid in victims():
            kill(pid)
        site.until(lambda before=before: not before & set(cluster.pool()), "others in their place")
        site.send("work", f"after-{number}")
        site.until(lambda number=number: site.ends(f"after-{number}"), "a task after the kill")
        site.drained()  # otherwise its process may not have reported its end yet
    site.check(once=True)
    cluster.stop()


CHILD_POINTS = ("ran",)
"""Crash points of a child, which is replaced: the task is done, but was not reported to the worker."""
MAIN_POINTS = ("received", "acking", "settled")
"""Crash points of the main process: a task has ended, its result is stored with the ack, both are stored."""


def test_process_is_killed_at_each_crash_point(django_anywhere: DjangoSite) -> None:
    """Between claim and ack: nothing is lost, and each result is stored once."""
    site = django_anywhere
    for point in (*MAIN_POINTS, *CHILD_POINTS):
        marker = site.path / point
        cluster = site.start(point, ready=False, QWORKER_CRASH_AT=f"{point}@{marker}")
        site.send_many("work", [(f"{point}-{number}",) for number in range(4)])
        if point in MAIN_POINTS:
            cluster.wait()
        else:
            site.until(marker.exists, f"a child to die at {point}")
            site.drained()
            cluster.stop()
        assert marker.exists(), cluster.log
    last = site.start("last")
    site.check()
    last.stop()


def test_two_clusters_run_each_of_some_hundred_tasks_once(django_anywhere: DjangoSite) -> None:
    site = django_anywhere
    clusters = [site.start("one"), site.start("two")]
    for start in range(0, 300, 100):
        site.send_many("work", [(str(number),) for number in range(start, start + 100)])
    site.check(once=True)
    for cluster in clusters:
        cluster.stop()
