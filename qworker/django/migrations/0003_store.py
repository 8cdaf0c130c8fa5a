"""The broker's tables, in the database that is the broker.

Comes from:  Django's command migrate.
Goes to:     ``tables/store.py``.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from qworker.django.apps import label
from qworker.django.tables.store import drop_tables, make_tables


class Migration(migrations.Migration):
    dependencies = [(label(), "0002_keys_and_indexes")]
    operations: list[Any] = [migrations.RunPython(make_tables, drop_tables, hints={"model_name": "ormq"})]
