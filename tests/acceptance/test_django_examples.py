"""The examples chapter of Django-Q's manual, with a cluster on an SQLite file.

A project is written to a directory. A script beside the cluster calls what a page would call, and prints
the results as JSON; each test checks one example's part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

SETTINGS = """
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECRET_KEY = "of a test, and of nothing else; it is as long as Django wants keys to be"
USE_TZ = True
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "qworker.django",
    "library",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": HERE / "db.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
    }
}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.db.DatabaseCache",
        "LOCATION": "cache",
        "OPTIONS": {"MAX_ENTRIES": 10_000},
    }
}
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = HERE / "mails"
ADMINS = [("Root", "root@example.com")]
Q_CLUSTER = {"name": "examples", "workers": 2, "timeout": 30, "orm": "default"}
"""

LIBRARY = """
from django.db import models


class Document(models.Model):
    title = models.CharField(max_length=80)


class Entry(models.Model):
    word = models.CharField(max_length=80)
    document = models.ForeignKey(Document, models.CASCADE)
"""

TASKS = """
from django.contrib.auth.models import User
from django.core.mail import send_mass_mail

from library.models import Entry
from qworker.django.tasks import async_task

SENDER = "from@example.com"


def inform_everyone(user):
    others = User.objects.exclude(pk=user.pk)
    text = f"{user.username} is now at {user.email}"
    return send_mass_mail([("New address", text, SENDER, [other.email]) for other in others])


def create_html_report(user):
    if not user.email:
        raise LookupError(f"{user.username} cannot be reached")
    return f"<p>What {user.username} wants to know</p>"


def email_report(task):
    if task.success:
        receiver = task.args[0].email
        async_task("django.core.mail.send_mail", "Your report", task.result, SENDER, [receiver])
    else:
        async_task("django.core.mail.mail_admins", "A report failed", task.result)


def index_object(model, instance):
    for word in model.objects.get(pk=instance.pk).title.split():
        Entry.objects.create(word=word.lower(), document=instance)


def parzen(samples, point, width):
    inside = sum(all(abs(p - x) / width <= 0.5 for p, x in zip(point, row)) for row in samples)
    return width, inside / len(samples) / width ** len(point)
"""

SCRIPT = """
import json
import os
import random
import subprocess
import time
from datetime import timedelta

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"

import django

django.setup()

from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.core.mail.backends import filebased
from django.db.models.signals import post_save, pre_save
from django.dispatch import receiver
from django.utils import timezone

from library.models import Document, Entry
from qworker.django.models import Schedule, Task
from qworker.django.tasks import *
from tasks import SENDER, parzen

found = {}
PATIENCE = 30_000


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, f"never: {condition.__name__}"
        time.sleep(0.05)


def subjects(receiver):
    texts = [path.read_text() for path in settings.EMAIL_FILE_PATH.glob("*")]
    mails = [part for text in texts for part in text.split("-" * 79) if f"To: {receiver}" in part]
    return sorted(line[9:] for mail in mails for line in mail.splitlines() if line.startswith("Subject: "))


people = ("ada", "bob", "eve")
ada, bob, eve = [User.objects.create(username=name, email=f"{name}@example.com") for name in people]


# -- a mail now, and one later --

def welcome(user, later):
    mail = "django.core.mail.send_mail"
    async_task(mail, "Welcome", "You are in.", SENDER, [user.email])
    schedule(
        mail, "Follow up", "How is it?", SENDER, [user.email],
        schedule_type=Schedule.ONCE, next_run=timezone.now() + later,
    )

def both_mails():
    return len(subjects(ada.email)) == 2

def no_schedule():
    return not Schedule.objects.filter(args__contains=ada.email).exists()

welcome(bob, timedelta(hours=1))
welcome(ada, timedelta(seconds=1))
first = Schedule.objects.count()
until(both_mails)
until(lambda: Schedule.objects.count() == 1)
found["mails"] = {
    "schedules": [first, Schedule.objects.count()], "ada": subjects(ada.email), "bob": subjects(bob.email)
}


# -- who saves a user with another address tells everyone --

told = []

@receiver(pre_save, sender=User)
def email_changed(sender, instance, **kwargs):
    before = sender.objects.filter(pk=instance.pk).first()
    if before is not None and before.email != instance.email:
        told.append(async_task("tasks.inform_everyone", instance))

User.objects.create(username="new", email="new@example.com")
eve.first_name = "Eve"
eve.save()
eve.email = "eve@example.org"
eve.save()
found["signal"] = {
    "calls": len(told), "sent": result(told[0], PATIENCE),
    "to": [subjects(user.email)[0] for user in (ada, bob)],
    "herself": subjects("eve@example.org"),
}


# -- a report, mailed by a hook --

nobody = User.objects.create(username="nobody", email="")
for user in (eve, nobody):
    async_task("tasks.create_html_report", user, hook="tasks.email_report")
until(lambda: subjects("eve@example.org") and subjects("root@example.com"))
found["report"] = {"eve": subjects("eve@example.org"), "admins": subjects("root@example.com")}


# -- a search index --

calls = []

@receiver(post_save, sender=Document)
def document_changed(sender, instance, **kwargs):
    calls.append(async_task("tasks.index_object", sender, instance, save=False))

Document.objects.create(title="The Wind in the Willows")
until(lambda: Entry.objects.count() == 5)
found["index"] = {
    "words": sorted(Entry.objects.values_list("word", flat=True)),
    "kept": fetch(calls[0], wait=500) is not None,
}


# -- commands of the shell, and of Django --

copied = result(async_task("subprocess.run", ["cp", "settings.py", "settings.bak"]), PATIENCE)
piped = result(async_task("subprocess.run", ["ls", "settings.bak"], stdout=subprocess.PIPE), PATIENCE)
failed = fetch(async_task("subprocess.check_output", ["false"]), PATIENCE)
found["shell"] = {
    "call": result(async_task("subprocess.call", ["cp", "settings.py", "more.bak"]), PATIENCE),
    "more": os.path.exists("more.bak"),
    "output": result(async_task("subprocess.check_output", ["ls", "settings.bak"]), PATIENCE).decode(),
    "copied": [type(copied).__name__, copied.args, copied.returncode],
    "piped": piped.stdout.decode(),
    "failed": [failed.success, failed.result.splitlines()[0].partition(" : ")[0]],
    "scheduled": schedule("subprocess.run", ["touch", "scheduled.txt"], name="touch").name,
}
until(lambda: os.path.exists("scheduled.txt"))


def old_session():
    session = SessionStore()
    session.set_expiry(timezone.now() - timedelta(days=1))
    session.save()

old_session()
before = Session.objects.count()
ended = fetch(async_task("django.core.management.call_command", "clearsessions"), PATIENCE)
between = Session.objects.count()
old_session()
schedule("django.core.management.call_command", "clearsessions", schedule_type="H", name="clear")
until(lambda: Task.objects.filter(group="clear").exists())
found["command"] = {"success": ended.success, "sessions": [before, between, Session.objects.count()]}


# -- a density, in a group and by an iterable --

random.seed(1)
samples = [(random.gauss(0, 1), random.gauss(0, 1)) for _ in range(300)]
widths = [1 + number / 500 for number in range(100)]
delete_group("parzen", cached=True)
for width in widths:
    async_task(parzen, samples, (0, 0), width, group="parzen", cached=True)
group = result_group("parzen", count=100, wait=PATIENCE, cached=True)
whole = async_iter(parzen, [(samples, (0, 0), width) for width in widths], cached=True)
iterated = result(whole, wait=PATIENCE, cached=True)
here = [list(parzen(samples, (0, 0), width)) for width in widths]
found["parzen"] = {
    "group": sorted(map(list, group)) == here,
    "iterated": sorted(map(list, iterated)) == here,
    "rows": Task.objects.filter(func="tasks.parzen").count(),
    "size": [count_group("parzen", cached=True), delete_group("parzen", cached=True),
             count_group("parzen", cached=True)],
}
print(json.dumps(found))
"""

MANAGE = """
import os
import sys

from django.core.management import execute_from_command_line

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""


def run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{directory}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    log = directory / "cluster.log"
    assert done.returncode == 0, done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The parsed output of the script, one part per example; the cluster must exit successfully."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "library").mkdir()
    (directory / "library" / "__init__.py").write_text("")
    files = {
        "settings": SETTINGS,
        "library/models": LIBRARY,
        "tasks": TASKS,
        "script": SCRIPT,
        "manage": MANAGE,
    }
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    run(directory, "manage.py", "makemigrations", "library")
    run(directory, "manage.py", "migrate")
    run(directory, "manage.py", "createcachetable")
    log = directory / "cluster.log"
    with log.open("wb") as out:
        cluster = subprocess.Popen(
            [sys.executable, "manage.py", "qcluster"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{directory}"},
            stdout=out,
            stderr=out,
        )
    try:
        until(lambda: "running" in log.read_text(), say=log.read_text)
        printed = json.loads(run(directory, "script.py"))
        cluster.send_signal(signal.SIGTERM)
        assert cluster.wait(30) == 0, log.read_text()
        yield printed
    finally:
        if cluster.poll() is None:
            cluster.kill()
            cluster.wait()


def test_welcome_mail_is_sent_now_and_follow_up_once_later(found: dict[str, Any]) -> None:
    assert found["mails"] == {"schedules": [2, 1], "ada": ["Follow up", "Welcome"], "bob": ["Welcome"]}


def test_model_signal_enqueues_a_call_with_the_instance(found: dict[str, Any]) -> None:
    answer = found["signal"]
    assert (answer["calls"], answer["sent"], answer["herself"]) == (1, 3, [])
    assert answer["to"] == ["Follow up", "New address"]


def test_hook_mails_the_report_or_the_error(found: dict[str, Any]) -> None:
    assert found["report"]["eve"] == ["Your report"]
    assert [subject.endswith("A report failed") for subject in found["report"]["admins"]] == [True]


def test_models_and_instances_are_arguments_of_an_unsaved_task(found: dict[str, Any]) -> None:
    assert found["index"] == {"words": ["in", "the", "the", "willows", "wind"], "kept": False}


def test_subprocess_functions_return_their_results(found: dict[str, Any]) -> None:
    assert found["shell"] == {
        "call": 0,
        "more": True,
        "output": "settings.bak\n",
        "copied": ["CompletedProcess", ["cp", "settings.py", "settings.bak"], 0],
        "piped": "settings.bak\n",
        "failed": [False, "Command '['false']' returned non-zero exit status 1."],
        "scheduled": "touch",
    }


def test_call_command_is_called_and_scheduled(found: dict[str, Any]) -> None:
    assert found["command"] == {"success": True, "sessions": [1, 0, 0]}


def test_cached_group_and_iterable_give_the_same_results(found: dict[str, Any]) -> None:
    assert found["parzen"] == {"group": True, "iterated": True, "rows": 0, "size": [100, 100, None]}
