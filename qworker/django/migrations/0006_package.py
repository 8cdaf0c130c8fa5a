"""The column for a task's package.

Comes from:  Django's command migrate.
Goes to:     the database.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from qworker.django.labels import label
from qworker.django.tables.operations import AddField


class Migration(migrations.Migration):
    dependencies = [(label(), "0005_parts")]
    operations: list[Any] = [
        AddField("task", "package", models.TextField(default=None, editable=False, null=True)),
    ]
