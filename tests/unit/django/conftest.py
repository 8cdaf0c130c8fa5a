"""What the tests of the Django package share: a project in this process, and Q_CLUSTER as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.test import override_settings

from qworker.django.conf import conf
from tests.support.django_project import configure

configure()


@pytest.fixture(autouse=True)
def _nobodys_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A developer's own Q_CLUSTER_NAME must not change what a test sees."""
    monkeypatch.delenv("Q_CLUSTER_NAME", raising=False)
    conf.reset()
    yield
    monkeypatch.undo()
    conf.reset()


@pytest.fixture
def cluster() -> Iterator[Callable[..., None]]:
    """Call it with keys of Q_CLUSTER and values: the setting is that until the end of the test."""
    made = []

    def configure_cluster(**keys: object) -> None:
        override = override_settings(Q_CLUSTER=keys)
        override.enable()
        made.append(override)

    yield configure_cluster
    for override in reversed(made):
        override.disable()
