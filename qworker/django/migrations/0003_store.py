"""The broker's tables, in the database that is the broker.

Comes from:  Django's command migrate.
Goes to:     ``store_tables``.
Thread:      the one that migrates.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from qworker.django.apps import label
from qworker.django.store_tables import drop_tables, make_tables


class Migration(migrations.Migration):
    dependencies = [(label(), "0002_keys_and_indexes")]
    operations: list[Any] = [migrations.RunPython(make_tables, drop_tables, hints={"model_name": "ormq"})]
