"""A Django project for tests, in this process: its settings, its pages, and an SQLite file.

Comes from:  tests of qworker.django, before they import models.
Goes to:     Django, which can be set up once in a process.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command

from qworker.context import set_default_maker

SECRET_KEY = "a key that only tests know, and nobody else does, so it is long"


def urlpatterns() -> list[Any]:
    """The pages: only those of the admin."""
    from django.contrib import admin
    from django.urls import path

    return [path("admin/", admin.site.urls)]


class Pages:
    """The module for ROOT_URLCONF; the patterns are created on first use."""

    @property
    def urlpatterns(self) -> list[Any]:
        return urlpatterns()


@cache
def configure() -> Path:
    """Set up Django, once; return its SQLite file, deleted with the process."""
    directory = Path(tempfile.mkdtemp(prefix="qworker-django-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    file = directory / "project.db"
    settings.configure(
        SECRET_KEY=SECRET_KEY,
        USE_TZ=True,
        TIME_ZONE="Europe/Amsterdam",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=Pages(),
        STATIC_URL="/static/",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": file}},
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.messages",
            "django.contrib.admin",
            "qworker.django",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[
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
        ],
        Q_CLUSTER={"name": "default", "orm": "default", "label": "Queue of tests"},
    )
    django.setup()
    set_default_maker(None)  # other tests in this process have their own apps
    return file


@cache
def migrate() -> None:
    """Make the tables, once: collecting tests does not need them."""
    call_command("migrate", verbosity=0)
