"""Fixtures for the Django tests: a project in this process, and Q_CLUSTER set by each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.test import override_settings

from qworker.django.conf import conf
from tests.support.django_project import configure, migrate

configure()


@pytest.fixture(autouse=True)
def _project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the tables, and hide a developer's own Q_CLUSTER_NAME."""
    migrate()
    monkeypatch.delenv("Q_CLUSTER_NAME", raising=False)
    conf.reset()
    yield
    monkeypatch.undo()
    conf.reset()


@pytest.fixture
def cluster() -> Iterator[Callable[..., None]]:
    """A function that sets Q_CLUSTER to its keyword arguments until the end of the test."""
    made = []

    def configure_cluster(**keys: object) -> None:
        override = override_settings(Q_CLUSTER=keys)
        override.enable()
        made.append(override)

    yield configure_cluster
    for override in reversed(made):
        override.disable()
