"""Unreadable and unsendable schedules beside valid ones; on each kind of database."""

from __future__ import annotations

import pytest

from tests.acceptance.django_site import TASKS, DjangoSite

pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

SCHEDULES = f"""
from datetime import timedelta
from django.utils import timezone
past = timezone.now() - timedelta(seconds=30)
common = dict(func="{TASKS}.work", schedule_type="O", repeats=1)

def make(name, **fields):
    return Schedule(**{{**common, "name": name, "next_run": past, **fields}})

Schedule.objects.bulk_create([
    make("before", args="'before'"),
    make("args", args="'open, ("),
    make("kwargs", kwargs="no=dict()"),
    make("cron", args="'cron'", schedule_type="C", cron="99 * * * *", repeats=-1),
    make("no cron", args="'cron'", schedule_type="C", repeats=-1),
    make("kind", args="'kind'", schedule_type="ZZ", repeats=-1),
    make("options", args="'options'", kwargs="q_options={{'timeout': 'soon'}}"),
    make("cluster", args="'cluster'", kwargs="q_options={{'cluster': 'x' * 3}}"),
    make("long", args="'long'", kwargs="q_options={{'cluster': '" + "x" * 3000 + "'}}"),
    make("end", args="'end'", schedule_type="Y", repeats=-1, next_run=past.replace(year=9999)),
    make("unknown", func="{TASKS}.nowhere"),
    make("after", args="'after'"),
])
"""


def test_unreadable_schedule_does_not_affect_others(django_anywhere: DjangoSite) -> None:
    """Each is reported once, valid ones before and after it are sent once, and a corrected one is sent."""
    site = django_anywhere
    site.do(SCHEDULES)
    if site.kind == "sqlite":
        # SQLite's columns accept any value.
        site.database.rows("UPDATE qworker_schedule SET next_run = '0000-13-45 99:00' WHERE name = 'kind'")
    cluster = site.start()
    site.until(lambda: site.ends("before") and site.ends("after"), "the schedules around the wrong ones")
    for name in ("args", "kwargs", "cron", "no cron", "kind", "options", "cluster", "long"):
        site.until(lambda name=name: "is not sent" in cluster.log, f"{name} to be told")
    unknown = site.until(lambda: site.tasks(func=f"{TASKS}.nowhere"), "the unknown function")
    assert [row["success"] for row in unknown] == [False]
    site.do("Schedule.objects.filter(name='args').update(args=\"'mended'\")")
    site.do(f"Schedule.objects.create(name='late', func='{TASKS}.work', args=\"'late'\")")
    site.until(lambda: site.ends("mended") and site.ends("late"), "what came later")
    assert all(site.starts(key) == 1 for key in ("before", "after", "mended", "late")), cluster.log
    for name in ("args", "kwargs", "cron", "no cron", "options", "long"):
        assert cluster.log.count(f"the schedule {name} is not sent") == 1, cluster.log
    assert cluster.log.count("is not sent") <= 9, cluster.log
    cluster.stop()
