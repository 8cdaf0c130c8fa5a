"""predecessor: checks that django-q2's migrations are complete before its tables are adopted.

Comes from:  Django's signal before it migrates; the first migration.
Goes to:     the table of applied migrations.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.migrations.recorder import MigrationRecorder

from qworker.django.labels import PREDECESSOR
from qworker.errors import ConfigurationError

MIGRATIONS = (
    "0001_initial",
    "0002_auto_20150630_1624",
    "0003_auto_20150708_1326",
    "0004_auto_20150710_1043",
    "0005_auto_20150718_1506",
    "0006_auto_20150805_1817",
    "0007_ormq",
    "0008_auto_20160224_1026",
    "0009_auto_20171009_0915",
    "0010_auto_20200610_0856",
    "0011_auto_20200628_1055",
    "0012_auto_20200702_1608",
    "0013_task_attempt_count",
    "0014_schedule_cluster",
    "0015_alter_schedule_schedule_type",
    "0016_schedule_intended_date_kwarg",
    "0017_task_cluster_alter",
    "0018_task_success_index",
    "0019_alter_task_options_alter_ormq_key_alter_ormq_lock_and_more",
)
"""The migrations of django-q2 1.11."""


def refuse_older(using: str, **_signal: Any) -> None:
    """Raise ConfigurationError if only some of these migrations were applied to the database *using*."""
    had = {
        name for app, name in MigrationRecorder(connections[using]).applied_migrations() if app == PREDECESSOR
    }
    missing = [name for name in MIGRATIONS if name not in had]
    if missing and len(missing) < len(MIGRATIONS):
        raise ConfigurationError(
            f"the database {using!r} has the tables of an older version of django-q, without the migration "
            f"{missing[0]}: install django-q2 1.11 and run its migrations first"
        )
