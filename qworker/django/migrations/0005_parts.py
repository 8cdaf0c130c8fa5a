"""The table of an iterable's ended calls, which were in the cache, or stored as tasks, before.

Comes from:  Django's command migrate.
Goes to:     the database.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from qworker.django.labels import label
from qworker.django.tables.operations import AddIndex, CreateModel


class Migration(migrations.Migration):
    dependencies = [(label(), "0004_queue")]
    operations: list[Any] = [
        CreateModel(
            name="Part",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("whole", models.CharField(max_length=32)),
                ("started", models.DateTimeField()),
                ("changed", models.DateTimeField()),
                ("row", models.BinaryField()),
                ("needed", models.IntegerField(null=True)),
                ("ended", models.IntegerField(null=True)),
            ],
            options={"db_table": "qworker_part", "default_permissions": ()},
        ),
        AddIndex("part", models.Index(name="qworker_part_whole", fields=["whole", "changed"])),
        AddIndex("part", models.Index(name="qworker_part_changed", fields=["needed", "changed"])),
    ]
