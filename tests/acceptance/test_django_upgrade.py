"""The page "Move a project from django-q2", followed on databases filled by django-q2 1.11."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.django_places import KINDS, Place
from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "migrate-from-django-q2.md"
DATA = REPOSITORY / "tests" / "data"
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

SETTINGS = """
DATABASES = {"default": %(database)r}
if DATABASES["default"]["ENGINE"].endswith("mysql"):
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
SECRET_KEY = "a key that only tests of adoption know, and nobody else does"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SILENCED_SYSTEM_CHECKS = ["models.W037", "mysql.W002"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django_q",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
Q_CLUSTER = {"name": "default", "orm": "default", "workers": 1, "timeout": 60, "retry": 120}
Q_CLUSTER |= {"catch_up": False, "ack_failures": True}
"""
FILES = {
    "urls.py": """
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
""",
    "manage.py": """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
""",
    "shop/__init__.py": "",
    "shop/migrations/__init__.py": "",
    "shop/models.py": """
from django.db import models


class Mail(models.Model):
    text = models.CharField(max_length=200)
    task = models.ForeignKey("django_q.Task", null=True, on_delete=models.SET_NULL, db_constraint=False)
""",
    "shop/migrations/0001_initial.py": """
from django.db import migrations, models


def schedule(apps, schema_editor):
    Schedule = apps.get_model("django_q", "Schedule")
    Schedule.objects.create(name="of a migration", func="shop.tasks.greet", args="'m'")


class Migration(migrations.Migration):
    dependencies = [("django_q", "0017_task_cluster_alter")]
    operations = [
        migrations.CreateModel(
            "Mail",
            [
                (
                    "id",
                    models.BigAutoField(
                        primary_key=True, auto_created=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("text", models.CharField(max_length=200)),
                (
                    "task",
                    models.ForeignKey(
                        "django_q.Task", null=True, on_delete=models.SET_NULL, db_constraint=False
                    ),
                ),
            ],
        ),
        migrations.RunPython(schedule),
    ]
""",
    "shop/tasks.py": """
import django_q.signals
from django_q.models import Schedule, Task
from django_q.tasks import async_task, fetch, result


def greet(name):
    return f"hello {name}"


def told(task):
    from shop.models import Mail

    Mail.objects.create(text=task.result, task=Task.objects.get(pk=task.pk))


def send(name):
    return async_task("shop.tasks.greet", name, hook="shop.tasks.told", group="greetings")
""",
    "look.py": """
import json
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django

django.setup()
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from qworker.django.waiting.watcher import watcher_of
from shop.models import Mail
from shop.tasks import async_task, fetch, send
from tests.support.waiting import until

found = {}
task = fetch(send("ada"), wait=30_000)
until(Mail.objects.exists)  # the hook runs after the task is there
found["new"] = [task.result, list(Mail.objects.values_list("text", "task_id")) == [(task.result, task.pk)]]
if connection.vendor != "mysql":  # told by the cluster's ack, and not found by looking: else this never ends
    watcher = watcher_of("default", "default").watcher
    watcher.poll = watcher.stalled = 1e9
    assert fetch(async_task("time.sleep", 1), wait=-1).success
root = User.objects.create_superuser("root", "root@example.com", "root")
client = Client()
client.force_login(root)
pages = [f"/admin/django_q/{name}/" for name in ("success", "failure", "schedule", "ormq")]
pages += [f"/admin/django_q/success/{'0' * 32}/change/", "/admin/django_q/schedule/1/change/"]
found["pages"] = {client.get(page).status_code for page in pages}
rights = Permission.objects.filter(content_type__app_label="django_q", codename="add_schedule")
found["rights"] = rights.count()
print(json.dumps(found, default=list))
""",
    "wait.py": """
import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django

django.setup()
from django.utils import timezone
from qworker.django.models import OrmQ, Schedule, Task

ran = Task.objects.filter(name__startswith="waiting-").order_by("name")
print(list(ran.values_list("name", "result", "success")), OrmQ.objects.count())
sent = Schedule.objects.exclude(task=None).order_by("func", "pk")
for row in sent:
    done = Task.objects.filter(pk=row.task).first()
    print(row.func, row.repeats, row.next_run > timezone.now(), done and done.result)
""",
}


class Project:
    def __init__(self, directory: Path, database: dict[str, Any]) -> None:
        self.directory = directory
        for name, text in {**FILES, "settings.py": SETTINGS % {"database": database}}.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        self.log = directory / "cluster.log"
        self.environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{directory}"}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def manage(self, *words: str) -> str:
        return self.run(sys.executable, "manage.py", *words)


@pytest.fixture(params=KINDS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """A project of django-q2 with its filled database, moved up to step 4 of the page."""
    place = Place(request.param, tmp_path)
    place.fill(DATA / f"django_q2.{place.kind}.sql")
    directory = tmp_path / "project"
    made = Project(directory, place.django)
    (replace,) = re.findall(r"```sh\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made.run("bash", "-euc", replace)
    settings = directory / "settings.py"
    (line,) = re.findall(r'^ +"(\S+)",  # was: "django_q"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    settings.write_text(settings.read_text().replace('"django_q"', f'"{line}"'))
    yield made
    place.clear()


def test_project_is_moved(project: Project) -> None:
    tasks = (project.directory / "shop" / "tasks.py").read_text()
    assert "django_q" not in tasks
    assert "import qworker.django.signals" in tasks
    assert (
        '("django_q", "0017_task_cluster_alter")'
        in (project.directory / "shop" / "migrations" / "0001_initial.py").read_text()
    )
    assert "no issues" in project.manage("check")
    project.manage("migrate")
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run")
    with project.log.open("wb") as out:
        clusters = [
            subprocess.Popen(
                [sys.executable, "manage.py", "qcluster", *more],
                cwd=project.directory, env=project.environment, stdout=out, stderr=out,
            )
            for more in ([], ["--name", "other"])
        ]  # fmt: skip
    try:
        say = project.log.read_text
        ran = (
            "[('waiting-0', 0.0, True), ('waiting-1', 1.0, True), ('waiting-2', 1.4142135623730951, True)] 0"
        )
        # The nightly schedule is caught up once, and the others were due at once.
        schedules = [
            "builtins.dict -2 True {'word': 'django', 'n': 2}",
            "math.hypot -8 True 5.0",
        ]
        until(lambda: project.run(sys.executable, "wait.py").splitlines() == [ran, *schedules], 60, say)
        found = json.loads(project.run(sys.executable, "look.py"))
        assert found == {"new": ["hello ada", True], "pages": [200], "rights": 1}
        assert "hello m" in project.manage(
            "shell",
            "-c",
            "from qworker.django.models import *; print(Task.objects.get(group='of a migration').result)",
        )
        assert "Successes" in project.manage("qinfo")
    finally:
        for cluster in clusters:
            cluster.send_signal(signal.SIGTERM)
        codes = [cluster.wait(60) for cluster in clusters]
    assert codes == [0, 0], project.log.read_text()
