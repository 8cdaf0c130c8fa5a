"""Django's connections of callers that read results in a transaction."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.db import connection

from qworker.django.clusters.engine import app
from qworker.django.execution import connections as task_connections


def test_reading_a_result_keeps_the_callers_transaction() -> None:
    """Every test here runs in a transaction."""
    Group.objects.create(name="mine")
    assert app().backend.get("0" * 32) is None
    assert Group.objects.filter(name="mine").exists()


def test_eager_task_keeps_the_callers_connections() -> None:
    callers = task_connections.begin()
    assert callers == {"default"}
    Group.objects.create(name="mine")
    task_connections.end(callers)
    assert connection.in_atomic_block
    assert Group.objects.filter(name="mine").exists()
