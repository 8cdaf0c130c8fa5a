"""Discovery of tasks in a Django project."""

from __future__ import annotations

import sys

import pytest

from qworker import QWorker


def test_tasks_are_discovered_in_installed_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only django.contrib.auth has a module ``tokens``."""
    monkeypatch.delitem(sys.modules, "django.contrib.auth.tokens", raising=False)
    app = QWorker(set_as_current=False)
    app.autodiscover_tasks(related_name="tokens")
    app.load_tasks()
    assert "django.contrib.auth.tokens" in sys.modules
