"""The broker's tables, if the database is the broker.

Comes from:  Django's command migrate.
Goes to:     ``tables/store.py``; backwards, with waiting messages, also ``tables/adoption.py``.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from qworker.django.labels import PREDECESSOR, label
from qworker.django.tables.adoption import give_back
from qworker.django.tables.store import drop_tables, make_tables

LABEL = label()


class Migration(migrations.Migration):
    dependencies = [(LABEL, "0002_keys_and_indexes")]
    operations: list[Any] = [
        migrations.RunPython(
            make_tables, give_back if LABEL == PREDECESSOR else drop_tables, hints={"model_name": "ormq"}
        )
    ]
