"""Capabilities: the rows of the table of brokers."""

from __future__ import annotations

import pytest

from qworker.conf import Settings
from qworker.transports import SCHEMES, open_broker
from qworker.transports.capabilities import Capabilities, capabilities_of
from qworker.transports.kombu.broker import OTHER, PLAIN
from qworker.transports.schemes import rows

OPENED = {
    "sqlite": "sqlite:///q.db",
    "unix": "unix:///run/redis.sock",
    "ironmq": "ironmq://project:token@h",
    "spool": "spool:///var/spool/jobs",
}
"""URLs of schemes that need more than a host."""


@pytest.mark.parametrize("row", [*rows(), *PLAIN, OTHER], ids=lambda row: row.name)
def test_partial_capabilities_count_as_lacking(row: Capabilities) -> None:
    assert set(row.in_part) <= row.lacks
    assert all(row.in_part.values())


@pytest.mark.parametrize("scheme", [*sorted({*SCHEMES} - {"sentinel"}), "nats", "memory"])
def test_row_lists_what_the_opened_broker_lacks(scheme: str) -> None:
    url = OPENED.get(scheme, f"{scheme}://h")
    assert open_broker(url, Settings({})).lacks == capabilities_of(url).lacks
