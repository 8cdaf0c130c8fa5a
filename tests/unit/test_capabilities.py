"""Capabilities: what the rows of brokers say of them."""

from __future__ import annotations

import pytest

from qworker.conf import Settings
from qworker.transports import SCHEMES, open_broker
from qworker.transports.capabilities import Capabilities, capabilities_of
from qworker.transports.kombu.broker import OTHER, PLAIN
from qworker.transports.registered import rows

OPENED = {
    "sqlite": "sqlite:///q.db",
    "unix": "unix:///run/redis.sock",
    "ironmq": "ironmq://project:token@h",
    "spool": "spool:///var/spool/jobs",
}
"""URLs of those that the usual form does not fit."""


@pytest.mark.parametrize("row", [*rows(), *PLAIN, OTHER], ids=lambda row: row.name)
def test_what_is_there_in_part_counts_as_lacking(row: Capabilities) -> None:
    assert set(row.in_part) <= row.lacks
    assert all(row.in_part.values())


@pytest.mark.parametrize("scheme", [*sorted({*SCHEMES} - {"sentinel"}), "nats", "memory"])
def test_the_row_says_what_the_broker_has_no_part_for(scheme: str) -> None:
    url = OPENED.get(scheme, f"{scheme}://h")
    assert open_broker(url, Settings({})).lacks == capabilities_of(url).lacks
