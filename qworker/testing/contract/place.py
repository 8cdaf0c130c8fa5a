"""Place: where a broker is tested, and which parts of the contract it does not meet.

Comes from:  the author of a broker.
Goes to:     the suite, which accesses a broker only through its place.
Thread:      the test's; any thread may call count().
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from qworker.process.running_file import SLOT
from qworker.transports.capabilities import Capability
from qworker.transports.lease import Broker


class Assumption(StrEnum):
    """Assumptions of the suite that the contract does not require of a broker."""

    ANY_QUEUE = "any_queue"
    """``lease()`` reads any queue, whether it was registered or not."""
    DEAD_FROM_ELSEWHERE = "dead_from_elsewhere"
    """``Letters.push()`` accepts dead letters of another broker."""
    FLUSHED = "flushed"
    """``flush_delayed()`` finds all delayed messages."""
    LEASE_SECONDS = "lease_seconds"
    """Leases last for the ``lease_seconds`` given to open(), which may be 1.0."""
    ON_DEMAND = "on_demand"
    """A message stays in the broker, and is announced to all consumers, until one of them asks for it."""
    OTHER_PROCESSES = "other_processes"
    """A place created in another process, with the same directory, is the same place."""
    RECLAIMING = "reclaiming"
    """``reclaim()`` returns dead consumers; otherwise the server itself releases their messages."""
    SWEPT = "swept"
    """``sweep()`` deletes old dead letters; otherwise the server does, or nothing."""
    TEST_CLOCK = "test_clock"
    """The ``clock`` given to open() determines when delayed messages are due, in the server too."""
    TEXT = "text"
    """Headers and properties are delivered as the same text; otherwise as the same values."""
    UNMARKED = "unmarked"
    """A message released without being counted is delivered as if for the first time."""
    UPTIME = "uptime"
    """Leases expire by the ``uptime`` and after the ``lease_seconds`` given to open()."""


class Place(ABC):
    """A server's namespace, a directory or a file, empty at first.

    - lacks: what the broker declares as missing (``Broker.lacks``), and assumptions that do not hold. Tests
      that require one of these are skipped.
    - cannot: other tests to skip; the reason by the test's name.
    - fixture: the name of a pytest fixture to use, for example to start a server.
    - in_order: whether messages that were released or delayed are delivered in the order of publishing.
    - steps: the lowest priority of each step that the broker distinguishes, least urgent first.
    - examples: number of runs of test_random_operations_lose_and_duplicate_no_messages, and of batches of
      hostile settlements.
    - results_url: of the result store whose rows the broker stores with an ack, if they have a special
      format. An instance may override it. The suite does not connect to it.

    The tests use the queues "q", "r", "a", "b", "c" and "other".
    """

    lacks: ClassVar[frozenset[Capability | Assumption]] = frozenset()
    cannot: ClassVar[Mapping[str, str]] = {}
    fixture: ClassVar[str | None] = None
    in_order: ClassVar[bool] = True
    steps: ClassVar[tuple[int, ...]] = tuple(range(10))
    examples: ClassVar[int] = 80
    results_url: str = "cache+memory://"

    def __init__(self, directory: Path) -> None:
        """directory: a new one for each test. The same directory means the same place: for a server, derive
        a prefix or a database name from it."""
        self.directory = directory

    @abstractmethod
    def open(self, **options: Any) -> Broker:
        """Return a new broker object on the place, not connected yet.

        options: any of clock (a ``qworker.clock.Clock``), lease_seconds (a float), uptime (returns the
        seconds used for leases) and revoke_expires (a float, seconds). The broker may ignore options if
        *lacks* says so.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of messages in any state, without dead letters."""

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        """Return status and payload of the result stored with an ack; None if there is none, or the broker
        lacks RESULTS."""
        return None

    def lose(self) -> None:
        """Delete all data and reset all counters, without notifying brokers, like a new server."""
        raise NotImplementedError(f"{type(self).__qualname__}.lose() must delete all data of the place")

    def clear(self) -> None:  # noqa: B027 - not needed for files in the directory
        """Delete everything on the server. Called after all brokers are closed."""


def mark(broker: Broker, *tags: int) -> bool:
    """Mark *tags* as running, like the children of a worker; return False if the broker has no such marks."""
    path = broker.consumer.running_path()
    if path is not None:
        Path(path).write_bytes(b"".join(SLOT.pack(tag) for tag in (0, *tags, 0)))
    return path is not None
