"""Whether a project's tables are there, as commands look before they begin."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from qworker.django.tables.migrated import require_tables
from qworker.errors import ConfigurationError


def test_a_database_is_asked_once_for_its_tables() -> None:
    with CaptureQueriesContext(connection) as queries:
        require_tables()
    assert len(queries) == 1


def test_tables_that_are_lacking_are_named() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE qworker_task RENAME TO elsewhere")
        cursor.execute("ALTER TABLE qworker_schedule RENAME TO elsewhere_too")
    with pytest.raises(ConfigurationError, match=r"no table qworker_schedule, qworker_task: run manage\.py"):
        require_tables()
