"""Fixtures of the acceptance tests. Comes from: pytest. Goes to: tests/acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Site, opened


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A place with a database and a ledger, and no worker yet; whatever was started there is gone afterwards."""
    with opened(tmp_path) as site:
        yield site
