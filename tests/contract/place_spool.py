"""Where the broker in a spool directory is tested.

Comes from:  lease_places.py.
Goes to:     a directory of its own.
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
    """UPTIME: a lock lasts as long as its process, however silent that is. RECLAIMING: the kernel gives back
    what a dead process held, and tells nobody; see tests/acceptance/test_spool_broker.py."""

    lacks = capabilities_of("spool://").lacks | {
        Assumption.DEAD_FROM_ELSEWHERE,
        Assumption.LEASE_SECONDS,
        Assumption.RECLAIMING,
        Assumption.UPTIME,
    }
    cannot = dict.fromkeys(
        (
            "test_near_messages_are_taken_ahead_within_the_horizon",
            "test_near_messages_have_a_limit_of_their_own",
        ),
        "a file is claimed when it is due, and not before",
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
