"""64-bit keys for schedules, and an index for each order of the admin's lists.

Comes from:  Django's command migrate.
Goes to:     the database.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from qworker.django.labels import index_name, label
from qworker.django.tables.operations import AddIndex


def _index(model: str, name: str, *fields: str) -> Any:
    return AddIndex(model_name=model, index=models.Index(fields=list(fields), name=index_name(name)))


class Migration(migrations.Migration):
    dependencies = [(label(), "0001_tables")]
    operations: list[Any] = [
        migrations.AlterField(
            model_name="schedule",
            name="id",
            field=models.BigAutoField(
                auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
            ),
        ),
        _index("schedule", "schedule_next_run", "next_run"),
        _index("task", "task_stopped", "success", "stopped", "id"),
        _index("task", "task_group", "group", "stopped"),
        _index("task", "task_name", "name"),
        _index("task", "task_func", "func", "stopped"),
    ]
