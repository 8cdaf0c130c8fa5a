"""The two labels of the app, of which a project installs one."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from django.apps.registry import Apps
from django.core.exceptions import ImproperlyConfigured
from django.db.migrations.loader import MigrationLoader

from qworker.django.apps import DjangoQConfig, QWorkerConfig

OURS, ADOPTING = "qworker.django", "qworker.django.apps.DjangoQConfig"


@pytest.mark.parametrize("installed", [[OURS, ADOPTING], [ADOPTING, OURS]])
def test_installing_both_labels_is_an_error(installed: list[str]) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"aren't unique, duplicates: qworker.django"):
        Apps(installed)


def test_django_q_label_together_with_django_q_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    predecessor = ModuleType("django_q")
    predecessor.__path__ = ["/nowhere"]
    monkeypatch.setitem(sys.modules, "django_q", predecessor)
    with pytest.raises(ImproperlyConfigured, match=r"labels aren't unique, duplicates: django_q"):
        Apps([ADOPTING, "django_q"])


def test_migrations_belong_to_the_installed_label() -> None:
    """The migrations package is imported once, with the label of the installed app."""
    assert (QWorkerConfig.label, DjangoQConfig.label) == ("qworker", "django_q")
    assert DjangoQConfig.name == QWorkerConfig.name == OURS
    loader = MigrationLoader(None, ignore_no_migrations=True)
    ours = [key for key in loader.disk_migrations if key[0] in ("qworker", "django_q")]
    assert {label for label, _ in ours} == {"qworker"}
    assert all(loader.disk_migrations[key].__module__.startswith(f"{OURS}.migrations.") for key in ours)
