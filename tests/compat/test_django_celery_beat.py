"""The migration guide's snippet carries over django-celery-beat entries from real tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import REPOSITORY, blocks

pytestmark = pytest.mark.integration

pytest.importorskip("django_celery_beat", reason="pip install django-celery-beat")

SETTINGS = """
from pathlib import Path
SECRET_KEY = "test"
USE_TZ = True
INSTALLED_APPS = ["django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path("beat.db").absolute())}}
"""
TASKS = """
from qworker import QWorker
app = QWorker("proj", broker="sqlite:///queue.db")
@app.task(name="report")
def report(*args, **kwargs): pass
"""
FILL = """
import datetime
from django.core.management import call_command
import django
django.setup()
call_command("migrate", verbosity=0)
from django_celery_beat.models import (
    ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule
)
every = IntervalSchedule.objects.create(every=10, period="minutes")
def add(name, **fields):
    PeriodicTask.objects.bulk_create([PeriodicTask(name=name, task="report", **fields)])
add("plain", interval=every)
add("celery.backend_cleanup", interval=every)
add("all", interval=every, args='[1, "x"]', kwargs='{"y": 2}', queue="slow", priority=4,
    headers='{"tenant": "a"}', expire_seconds=60, enabled=False)
add("no headers", interval=every, headers="")
never = CrontabSchedule.objects.create(minute="0", hour="0", day_of_month="31", month_of_year="2")
add("a never", crontab=never)
add("a torn", interval=every, kwargs="{")
nightly = CrontabSchedule.objects.create(
    minute="30", hour="4", day_of_week="1", timezone="Europe/Berlin"
)
add("nightly", crontab=nightly)
at = datetime.datetime(2040, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)
add("once", clocked=ClockedSchedule.objects.create(clocked_time=at), one_off=True)
add("sun", solar=SolarSchedule.objects.create(event="sunset", latitude=52.5, longitude=13.4))
"""
TELL = """
import json
from proj.tasks import app
found = {}
for listed in app.schedules.entries():
    name, entry = listed.name, listed.entry
    if entry is not None:
        found[name] = {
            "schedule": repr(entry.schedule), "args": list(entry.args), "kwargs": dict(entry.kwargs),
            "options": dict(entry.options), "enabled": entry.enabled, "expires": entry.expires,
            "max_runs": entry.max_runs, "tz": str(getattr(entry.schedule, "tz", None)),
        }
print("FOUND", json.dumps(found, default=str))
"""


def _snippet() -> str:
    page = (REPOSITORY / "docs/how-to/migrate-from-celery.md").read_text()
    (found,) = [block.text for block in blocks(page) if "django_celery_beat" in block.text]
    return found


def test_guide_snippet_carries_entries_over(tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    for name, text in {"__init__": "", "settings": SETTINGS, "tasks": TASKS}.items():
        (tmp_path / "proj" / f"{name}.py").write_text(text)
    (tmp_path / "run.py").write_text(FILL + _snippet() + TELL)
    run = subprocess.run(
        [sys.executable, "run.py"],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "proj.settings", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    *said, last = run.stdout.splitlines()
    assert [line.partition(" is not carried over: ")[0] for line in said] == ["a never", "a torn"]
    found: dict[str, dict[str, Any]] = json.loads(last.removeprefix("FOUND "))
    assert set(found) == {"plain", "all", "no headers", "nightly", "once", "sun"}
    full = found["all"]
    assert (full["args"], full["kwargs"], full["enabled"]) == ([1, "x"], {"y": 2}, False)
    assert full["options"] == {"queue": "slow", "priority": 4, "headers": {"tenant": "a"}}
    assert full["expires"] == 60
    assert found["plain"]["options"] == found["no headers"]["options"] == {}
    assert found["once"]["max_runs"] == 1
    assert found["nightly"]["schedule"].startswith("<crontab: 30 4 * * 1 ")
    assert found["nightly"]["tz"] == "Europe/Berlin"
    assert "sunset" in found["sun"]["schedule"]
