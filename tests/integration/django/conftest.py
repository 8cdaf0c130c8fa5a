"""A Django project with empty tables, for each test.

Comes from:  tests/support.
Goes to:     tests/integration/django.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.django_project import configure

configure()

from django.db import connection, transaction  # noqa: E402 - Django must be set up first


class _Undo(Exception):
    """Ends a test's transaction."""


@pytest.fixture(autouse=True)
def _tables_as_they_were() -> Iterator[None]:
    """Each test is one transaction, which is undone."""
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:  # what other tests of this process have sent
                cursor.execute("DELETE FROM message")
            yield
            raise _Undo
    except _Undo:
        connection.close()
