"""A cluster that is killed while it sends scheduled tasks: the next one neither loses nor repeats them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers import require
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.acceptance, pytest.mark.fault, pytest.mark.timeout(120)]

SETTINGS = """
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECRET_KEY = "of a test, and of nothing else; it is as long as Django wants keys to be"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "qworker.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "db.sqlite3"}}
Q_CLUSTER = {"name": %(name)r, "workers": 1, **%(broker)r}
"""

FOLDER = """
import os
import time
from pathlib import Path

from qworker.django.brokers import Broker

QUEUE = Path(__file__).resolve().parent / "queue"


class Folder(Broker):
    def enqueue(self, task):
        QUEUE.mkdir(exist_ok=True)
        name = f"{time.time_ns()}.{os.getpid()}"
        (QUEUE / f".{name}").write_text(task)
        (QUEUE / f".{name}").rename(QUEUE / f"{name}.ready")
        return name

    def dequeue(self):
        if os.environ.get("QWORKER_CRASH_AT"):
            return None  # what it takes would be lost with it
        for path in sorted(QUEUE.glob("*.ready"))[:1]:
            taken = path.rename(path.with_suffix(".taken"))
            return [(taken.name, taken.read_text())]

    def acknowledge(self, task_id):
        (QUEUE / task_id).rename((QUEUE / task_id).with_suffix(".done"))

    fail = acknowledge

    def queue_size(self):
        return len(list(QUEUE.glob("*.ready")))

    def ping(self):
        return True
"""

WORK = """
import os
import time
from pathlib import Path


def note(word, due):
    while os.environ.get("HOLD"):  # until the cluster is killed: a task that has run might run again
        time.sleep(0.1)
    with (Path(__file__).resolve().parent / "ran.txt").open("a") as file:
        file.write(f"{word} {due}\\n")
"""

MAKE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.utils import timezone
from qworker.django.tasks import schedule

now = timezone.now()
schedule("work.note", "hourly", schedule_type="H", next_run=now, intended_date_kwarg="due")
schedule("work.note", "once", next_run=now, intended_date_kwarg="due")
"""

LOOK = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
django.setup()
from django.utils import timezone
from qworker.django.models import Schedule, Task

for row in Schedule.objects.all():
    there = Task.objects.filter(pk=row.task).exists()
    print("schedule", row.schedule_type, row.next_run > timezone.now(), there)
print("tasks", Task.objects.count())
"""

MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""


class Project:
    def __init__(self, directory: Path, broker: str) -> None:
        self.directory = directory
        chosen = {
            "orm": {"orm": "default"},
            "folder": {"broker_class": "folder.Folder", "poll": 0.05},
            "redis": {"redis": require("redis") if broker == "redis" else ""},
        }[broker]
        texts = {
            "settings": SETTINGS % {"name": f"q{uuid4().hex[:12]}", "broker": chosen},
            "folder": FOLDER, "work": WORK, "make": MAKE, "look": LOOK, "manage": MANAGE,
        }  # fmt: skip
        for name, text in texts.items():
            (directory / f"{name}.py").write_text(text)
        self.log = directory / "cluster.log"
        self.run("manage.py", "migrate", "-v0")
        self.run("make.py")

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{self.directory}", **more}

    def run(self, *words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def cluster(self, **environment: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "manage.py", "qcluster"],
                cwd=self.directory, env=self.environment(**environment), stdout=out, stderr=out,
            )  # fmt: skip

    def ran(self) -> list[str]:
        file = self.directory / "ran.txt"
        return sorted(line.split()[0] for line in file.read_text().splitlines()) if file.exists() else []


@pytest.mark.parametrize(
    ("broker", "point"),
    [
        ("folder", "slots-pending"),
        ("folder", "entries-sent"),
        ("folder", "schedules-sent"),
        ("redis", "schedules-sent"),
        ("orm", "schedules-sent"),
    ],
)
def test_each_due_time_runs_once_if_its_sender_is_killed(tmp_path: Path, broker: str, point: str) -> None:
    project = Project(tmp_path, broker)
    hold = "" if broker == "folder" else "1"
    first = project.cluster(QWORKER_CRASH_AT=f"{point}@{tmp_path / 'crashed'}", HOLD=hold)
    assert first.wait(60) == -signal.SIGKILL, project.log.read_text()
    second = project.cluster()
    try:
        say = project.log.read_text
        until(lambda: project.ran() == ["hourly", "once"], say=say)
        done = tmp_path / "queue"
        if broker == "folder":  # the second copy is consumed as well, and runs nothing
            sent = 2 + 2 * (point == "entries-sent")
            until(lambda: len(list(done.glob("*.done"))) == sent, say=say)
        until(lambda: project.run("look.py") == ["schedule H True True", "tasks 2"], say=say)
        assert project.ran() == ["hourly", "once"]
    finally:
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 0, project.log.read_text()
