"""A Django project with empty tables, for each test.

Comes from:  tests/support.
Goes to:     tests/integration/django.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.django_places import Place
from tests.support.django_project import configure, migrate

configure()

from django.db import connection, transaction  # noqa: E402 - Django must be set up first


class _Undo(Exception):
    """Ends a test's transaction."""


@pytest.fixture(autouse=True)
def _rollback() -> Iterator[None]:
    """Run each test in one transaction, and roll it back."""
    migrate()
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:  # messages of other tests
                cursor.execute("DELETE FROM message")
            yield
            raise _Undo
    except _Undo:
        connection.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Callable[[str], Place]]:
    made: list[Place] = []

    def make(kind: str) -> Place:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Place(kind, directory))
        return made[-1]

    yield make
    for place in made:
        place.clear()
