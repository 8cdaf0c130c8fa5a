"""Isolates the tests of a process from each other's Celery tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _forget_tasks_of_other_tests() -> Iterator[None]:
    """Celery's ``app.task`` registers with every app that is finalized later in the process: the task of
    one test would replace another test's task of the same name."""
    try:
        from celery import _state as celery_state
    except ImportError:
        yield
        return
    before = set(celery_state._on_app_finalizers)
    yield
    celery_state._on_app_finalizers.intersection_update(before)
