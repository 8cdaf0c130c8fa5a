"""The queue as the models see it: a view of the broker's table, in place of the table that django-q2 had.

Comes from:  Django's command migrate.
Goes to:     ``tables/adoption.py`` and ``tables/store.py``.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from qworker.django.apps import label
from qworker.django.tables.adoption import move_back, move_queue
from qworker.django.tables.store import drop_views, make_views

LABEL = label()
HINTS = {"model_name": "ormq"}
ADOPT: list[Any] = [
    migrations.RunPython(move_queue, move_back, hints=HINTS),
    migrations.DeleteModel(name="OrmQ"),
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
