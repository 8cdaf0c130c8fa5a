"""Capabilities: what the table of brokers says of itself."""

from __future__ import annotations

import pytest

from qworker.transports.capabilities import CAPABILITIES, OTHER, Capabilities


@pytest.mark.parametrize("row", [*CAPABILITIES, OTHER], ids=lambda row: row.name)
def test_what_is_there_in_part_counts_as_lacking(row: Capabilities) -> None:
    assert set(row.in_part) <= row.lacks
    assert all(row.in_part.values())
