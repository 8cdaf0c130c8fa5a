"""watching: JSON and short error messages for the commands that show clusters.

Comes from:  qmonitor, qinfo and qmemory.
Goes to:     the terminal.
Thread:      main.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError

from qworker.django.tables.migrated import require_tables
from qworker.errors import QWorkerError


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """Raise CommandError for problems of the project, its broker or its database."""
    try:
        require_tables()
        yield
    except QWorkerError as error:
        raise CommandError(str(error)) from error
    except DatabaseError as error:
        raise CommandError(f"the database does not answer: {error}") from error


def as_json(value: Any) -> str:
    """Return *value* as indented JSON; values that JSON does not support become text."""
    return json.dumps(value, indent=2, default=str)
