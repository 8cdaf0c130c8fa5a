"""The check of the tables before a command starts."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from qworker.django.tables.migrated import require_tables
from qworker.errors import ConfigurationError


def test_tables_are_checked_with_one_query() -> None:
    with CaptureQueriesContext(connection) as queries:
        require_tables()
    assert len(queries) == 1


def test_missing_tables_are_named() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE qworker_task RENAME TO elsewhere")
        cursor.execute("ALTER TABLE qworker_schedule RENAME TO elsewhere_too")
    with pytest.raises(ConfigurationError, match=r"no table qworker_schedule, qworker_task: run manage\.py"):
        require_tables()
