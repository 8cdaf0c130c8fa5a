"""Common fixtures. Comes from: pytest. Goes to: tests/integration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.place_sql import MySQLPlace, PostgreSQLPlace, SQLPlace


@pytest.fixture(params=[PostgreSQLPlace, MySQLPlace], ids=["postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLPlace]:
    """Return a place on each SQL server. Test modules of other brokers define their own places."""
    made: SQLPlace = request.param(tmp_path)
    yield made
    made.clear()
