"""Place: where a broker is tested, and which parts of the contract it does not meet.

Comes from:  the author of a broker.
Goes to:     the suite, which only knows a broker through its place.
Thread:      the test's; count() any.
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
    """``Letters.push()`` takes dead letters of another broker."""
    FLUSHED = "flushed"
    """``flush_delayed()`` reaches what is delayed."""
    ON_DEMAND = "on_demand"
    """A message waits in the broker, for all to hear of, until a consumer asks for it."""
    OTHER_PROCESSES = "other_processes"
    """A place created in another process, with the same directory, is the same place."""
    RECLAIMING = "reclaiming"
    """``reclaim()`` finds and names the dead; otherwise the server itself gives back their messages."""
    SWEPT = "swept"
    """``sweep()`` deletes old dead letters; otherwise the server does, or nothing."""
    TEST_CLOCK = "test_clock"
    """Delayed messages wait by the ``clock`` given to open(), also in the server."""
    TEXT = "text"
    """Headers and properties return as the same text; otherwise as the same values."""
    UNMARKED = "unmarked"
    """A message given back uncounted is delivered as if for the first time."""
    UPTIME = "uptime"
    """Leases expire by the ``uptime`` and after the ``lease_seconds`` given to open()."""


class Place(ABC):
    """A server's namespace, a directory or a file, empty at first.

    - lacks: what the broker declares as missing (``Broker.lacks``), and assumptions that do not hold. Tests
      that require one of these are skipped.
    - cannot: other tests to skip; the reason by the test's name.
    - fixture: the name of a pytest fixture that must be active: it may start a server.
    - in_order: whether messages that came back, or were delayed, are delivered in the order of their first
      arrival.
    - steps: if priorities are not all distinguished, the lowest priority of each step, least urgent first.
    - examples: number of runs of test_a_bag_with_leases, and of batches of hostile settlements.
    - results_url: of the result store whose rows the broker stores with an ack, if that store has its own
      format; an object may have its own. It is not connected to.

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
        """directory: a new one for each test. The same directory means the same place: derive a prefix or a
        database name from it if the broker is a server."""
        self.directory = directory

    @abstractmethod
    def open(self, **options: Any) -> Broker:
        """Return another broker object on the place, not connected yet.

        options: any of clock (a ``qworker.clock.Clock``), lease_seconds (a float), uptime (returns the
        seconds used for leases) and revoke_expires (a float, seconds). Options without meaning for the broker
        may be ignored if *lacks* says so.
        """

    @abstractmethod
    def count(self) -> int:
        """Return how many messages there are, in any state, without dead letters."""

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        """Return status and payload of the result stored with an ack; None if there is none, and always if
        the broker lacks RESULTS."""
        return None

    def lose(self) -> None:
        """Lose all data without the brokers' knowledge, and restart all counters, like an empty server."""
        raise NotImplementedError(f"{type(self).__qualname__}.lose() must delete all data of the place")

    def clear(self) -> None:  # noqa: B027 - what lies in the directory goes with it
        """Delete everything on the server. Called after all brokers are closed."""


def mark(broker: Broker, *tags: int) -> bool:
    """Mark *tags* as running, like the children of a worker; False where such marks are not kept."""
    path = broker.consumer.running_path()
    if path is not None:
        Path(path).write_bytes(b"".join(SLOT.pack(tag) for tag in (0, *tags, 0)))
    return path is not None
