"""Where an app of a Django project looks for tasks."""

from __future__ import annotations

import sys

import pytest

from qworker import QWorker


def test_tasks_are_looked_for_in_the_installed_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """tokens is a module that django.contrib.auth has, and other apps have not."""
    monkeypatch.delitem(sys.modules, "django.contrib.auth.tokens", raising=False)
    app = QWorker(set_as_current=False)
    app.autodiscover_tasks(related_name="tokens")
    app.load_tasks()
    assert "django.contrib.auth.tokens" in sys.modules
