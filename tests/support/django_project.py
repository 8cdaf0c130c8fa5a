"""A Django project for tests, which this process becomes.

Django is set up once in a process. Call ``configure()`` from a conftest, before tests are imported.
"""

from __future__ import annotations

from pathlib import Path

import django
from django.conf import settings

import qworker

APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
]
SECRET_KEY = "a key of the tests, of which nobody makes a secret"


def configure() -> None:
    """Make this process a Django project with a database in memory; nothing when it is one already.

    Our own app is in it as soon as it is one.
    """
    if settings.configured:
        return
    is_app = (Path(qworker.__file__).parent / "django" / "apps.py").exists()
    settings.configure(
        SECRET_KEY=SECRET_KEY,
        USE_TZ=True,
        TIME_ZONE="Europe/Zurich",
        INSTALLED_APPS=[*APPS, *(["qworker.django"] if is_app else [])],
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
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        Q_CLUSTER={},
    )
    django.setup()
