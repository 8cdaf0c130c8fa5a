"""operations: migration steps that may be interrupted and repeated on every database.

Comes from:  our migrations.
Goes to:     Django's operations of the same names.
Thread:      the one that migrates.

MySQL and MariaDB commit each DDL statement at once, and on every database Django records a migration only
after its changes are committed. So an interrupted migration may find its earlier changes when it is run
again: existing tables, columns and indexes are not created again, and missing ones are not dropped.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations


class CreateModel(migrations.CreateModel):
    """Like Django's. Indexes are separate steps: Django creates them after the table, so they may be
    missing."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not _has_table(schema_editor.connection, to_state.apps.get_model(app_label, self.name)):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        table = from_state.apps.get_model(app_label, self.name)._meta.db_table
        if table in schema_editor.connection.introspection.table_names():
            super().database_backwards(app_label, schema_editor, from_state, to_state)


class AddIndex(migrations.AddIndex):
    """Like Django's."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_there(schema_editor.connection, to_state.apps.get_model(app_label, self.model_name)):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if self._is_there(schema_editor.connection, model):
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def _is_there(self, connection: Any, model: Any) -> bool:
        table = model._meta.db_table
        if table not in connection.introspection.table_names():
            return False
        with connection.cursor() as cursor:
            return self.index.name in connection.introspection.get_constraints(cursor, table)


class AddField(migrations.AddField):
    """Like Django's."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not self._is_there(schema_editor.connection, to_state.apps.get_model(app_label, self.model_name)):
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if self._is_there(schema_editor.connection, from_state.apps.get_model(app_label, self.model_name)):
            super().database_backwards(app_label, schema_editor, from_state, to_state)

    def _is_there(self, connection: Any, model: Any) -> bool:
        return model._meta.get_field(self.name).column in _columns_of(connection, model._meta.db_table)


def _has_table(connection: Any, model: Any) -> bool:
    """Return whether an earlier attempt has created the table of *model*. A table without its columns is
    another one: creating ours then raises an error."""
    there = _columns_of(connection, model._meta.db_table)
    return bool(there) and there >= {field.column for field in model._meta.local_concrete_fields}


def _columns_of(connection: Any, table: str) -> set[str]:
    """Return the columns of *table*; none if it does not exist."""
    if table not in connection.introspection.table_names():
        return set()
    with connection.cursor() as cursor:
        return {each.name for each in connection.introspection.get_table_description(cursor, table)}
