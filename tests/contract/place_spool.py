"""The spool broker as a place for the contract suite.

Comes from:  lease_places.py.
Goes to:     a new directory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qworker.spooler.broker.spool_broker import SpoolBroker
from qworker.spooler.files.writing import Sync
from qworker.testing.contract import Assumption, Place
from qworker.transports.capabilities import capabilities_of
from qworker.transports.lease import Broker


class SpoolPlace(Place):
    """UPTIME: a lock lasts as long as its process. RECLAIMING: the kernel releases the locks of a dead
    process without a notice; see tests/acceptance/test_spool_broker.py."""

    lacks = capabilities_of("spool://").lacks | {
        Assumption.DEAD_FROM_ELSEWHERE,
        Assumption.LEASE_SECONDS,
        Assumption.RECLAIMING,
        Assumption.UPTIME,
    }
    cannot = dict.fromkeys(
        (
            "test_delayed_messages_are_leased_early_within_the_eta_window",
            "test_delayed_limit_is_separate_from_the_lease_limit",
        ),
        "a file is not claimed before it is due",
    )

    def __init__(self, directory: Path) -> None:
        self.path = directory / "spool"

    def open(self, **options: Any) -> Broker:
        clock = {name: value for name, value in options.items() if name == "clock"}
        return SpoolBroker(str(self.path), sync=Sync.NOTHING, **clock)

    def count(self) -> int:
        queues = self.path / ".qw-queues"
        return sum(
            1
            for path in queues.rglob("uwsgi_spoolfile_on_*")
            if path.is_file() and path.parent.name != ".qw-dead"
        )

    def lose(self) -> None:
        shutil.rmtree(self.path)
