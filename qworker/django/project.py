"""project: the app of a Django project, for the command line and for tasks that name no app.

Comes from:  ``qworker start`` and similar commands in a Django project without its own app; shared tasks.
Goes to:     ``clusters/engine.py``, once Django is set up.
Thread:      main.
"""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps

from qworker import QWorker
from qworker.naming import import_object


def set_up() -> None:
    """Set up Django if needed. Raises Django's ImproperlyConfigured if DJANGO_SETTINGS_MODULE names no
    settings."""
    if not apps.ready:
        django.setup()


def package_names() -> list[str]:
    """Return the packages of INSTALLED_APPS in order, without this one: its ``tasks`` defines no task."""
    set_up()
    return [config.name for config in apps.get_app_configs() if config.name != __package__]


def make() -> QWorker:
    """Return the app of this project."""
    set_up()
    made: QWorker = import_object(
        "qworker.django.clusters.engine:app"
    )()  # imported late: its models need Django to be set up
    return made


def __getattr__(name: str) -> Any:
    """Make ``app`` on first access."""
    if name == "app":
        return make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
