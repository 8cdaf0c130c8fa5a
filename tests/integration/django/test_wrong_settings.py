"""Commands of a project with an invalid Q_CLUSTER."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROJECT = """
import sys
from django.conf import settings
from django.core.management import execute_from_command_line

apps = "admin auth contenttypes sessions messages".split()
settings.configure(
    SECRET_KEY="k",
    INSTALLED_APPS=[*(f"django.contrib.{name}" for name in apps), "qworker.django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    Q_CLUSTER=eval(sys.argv[1]),
)
execute_from_command_line(["manage.py", "check", "--tag", "qworker"])
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"label": 5}, "E001) Q_CLUSTER['label'] is 5"),
        ({"orm": ""}, "E001) Q_CLUSTER['orm'] is ''"),
        ({"mongo_db": "x"}, "E002) Q_CLUSTER: Q_CLUSTER['mongo_db'] is a key of MongoDB"),
        (5, "E001) Q_CLUSTER must be a mapping"),
    ],
    ids=str,
)
def test_command_reports_the_invalid_setting(setting: object, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROJECT, repr(setting)], capture_output=True, text=True, timeout=60
    )
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
