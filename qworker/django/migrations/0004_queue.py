"""The queue for the models: a view of the broker's table, which replaces django-q2's table.

Comes from:  Django's command migrate.
Goes to:     ``tables/adoption.py`` and ``tables/store.py``.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from qworker.django.labels import label
from qworker.django.tables.adoption import make_old_queue, move_queue
from qworker.django.tables.store import drop_views, make_views

LABEL = label()
HINTS = {"model_name": "ormq"}
ADOPT: list[Any] = [
    migrations.RunPython(move_queue, migrations.RunPython.noop, hints=HINTS),
    # Not atomic: Django refuses CREATE TABLE in a transaction on MySQL.
    migrations.RunPython(migrations.RunPython.noop, make_old_queue, hints=HINTS, atomic=False),
    migrations.SeparateDatabaseAndState(state_operations=[migrations.DeleteModel(name="OrmQ")]),
]


class Migration(migrations.Migration):
    dependencies = [(LABEL, "0003_store")]
    operations: list[Any] = [
        *(ADOPT if LABEL == "django_q" else []),
        migrations.RunPython(make_views, drop_views, hints=HINTS),
        migrations.CreateModel(
            name="QueueOwner",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("name", models.TextField()),
                ("lease_until", models.FloatField()),
            ],
            options={"db_table": "qworker_ormq_owner", "managed": False, "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="OrmQ",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
            ],
            options={
                "verbose_name": "Queued task",
                "verbose_name_plural": "Queued tasks",
                "db_table": "qworker_ormq",
                "ordering": ["id"],
                "managed": False,
            },
        ),
    ]
