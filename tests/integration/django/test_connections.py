"""Django's connections of who asks for results within a transaction of their own."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.db import connection

from qworker.django.clusters.engine import app
from qworker.django.execution import connections as task_connections


def test_asking_for_a_result_leaves_the_callers_transaction_alone() -> None:
    """Every test here is within one."""
    Group.objects.create(name="mine")
    assert app().backend.get("0" * 32) is None
    assert Group.objects.filter(name="mine").exists()


def test_a_task_that_is_run_in_place_keeps_its_callers_connections() -> None:
    callers = task_connections.begin()
    assert callers == {"default"}
    Group.objects.create(name="mine")
    task_connections.end(callers)
    assert connection.in_atomic_block
    assert Group.objects.filter(name="mine").exists()
