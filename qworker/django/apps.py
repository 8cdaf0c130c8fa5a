"""apps: how a project installs this package, under one of two labels.

Comes from:  Django, which reads INSTALLED_APPS.
Goes to:     the checks; ``labels.py``, which tells migrations and models the label.
Thread:      the one that starts Django.

"qworker.django" has its own tables. "qworker.django.apps.DjangoQConfig" is for a project that used django-q2:
it takes django-q2's label, and so its tables with all their data. Django refuses both of them at once, and
either beside the real django-q2, because of the second one's label.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured
from django.db.models.signals import post_migrate, pre_migrate

from qworker.context import set_default_maker
from qworker.django import checks
from qworker.django.conf import conf
from qworker.django.labels import PREDECESSOR
from qworker.django.settings.keys import KEYS
from qworker.django.tables import predecessor
from qworker.errors import ConfigurationError
from qworker.naming import import_object, install_command

try:
    import picklefield  # noqa: F401 - the models need it; imported here for a readable error
except ImportError as error:
    raise ImproperlyConfigured(
        f"qworker.django needs django-picklefield: {install_command('django')}"
    ) from error


class QWorkerConfig(AppConfig):
    """The application under its own label, ``qworker``."""

    name = "qworker.django"
    label = "qworker"
    default = True
    default_auto_field = "django.db.models.BigAutoField"

    @property
    def verbose_name(self) -> str:
        """Return the admin heading: the setting ``label``, or its default if it is invalid, which the checks
        report."""
        try:
            return str(conf.label)
        except ConfigurationError:
            return str(KEYS["label"].default)

    def ready(self) -> None:
        checks.register()
        set_default_maker(lambda: import_object("qworker.django.project:make")())
        post_migrate.connect(_make_what_is_missing, sender=self, dispatch_uid="qworker.django.tables.store")


class DjangoQConfig(QWorkerConfig):
    """The application under django-q2's label, ``django_q``: its tables are adopted."""

    label = PREDECESSOR
    default = False

    def ready(self) -> None:
        super().ready()
        pre_migrate.connect(predecessor.refuse_older, sender=self, dispatch_uid="qworker.django")


def _make_what_is_missing(**signal: Any) -> None:
    """Import lazily: only migrate needs the SQL of all databases."""
    import_object("qworker.django.tables.store:make_what_is_missing")(**signal)
