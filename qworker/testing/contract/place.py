"""Place: where a broker is tested, and what of the contract it is not held to.

Comes from:  the author of a broker.
Goes to:     the suite, which knows nothing of any broker but what its place says.
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
    """What the suite takes for granted and a good broker may not give: the promise does not ask for it."""

    ANY_QUEUE = "any_queue"
    """``lease()`` reads any queue, whether it was registered or not."""
    DEAD_FROM_ELSEWHERE = "dead_from_elsewhere"
    """``push_dead()`` takes dead letters of another broker."""
    FLUSHED = "flushed"
    """``flush_delayed()`` reaches what is delayed."""
    ON_DEMAND = "on_demand"
    """A message waits in the broker, for all to hear of, until a consumer asks for it."""
    OTHER_PROCESSES = "other_processes"
    """A place that is made anew in another process, with the same directory, is the same place."""
    RECLAIMING = "reclaiming"
    """``reclaim()`` finds and names the dead; elsewhere the server itself gives back what they held."""
    SWEPT = "swept"
    """``sweep()`` is what deletes old dead letters; elsewhere the server does, or nobody."""
    TEST_CLOCK = "test_clock"
    """What is delayed waits by the ``clock`` that open() is given, in the server as well."""
    TEXT = "text"
    """Headers and properties come back as the same text; elsewhere as the same values."""
    UNMARKED = "unmarked"
    """What is given back uncounted comes again as if for the first time."""
    UPTIME = "uptime"
    """Leases run out by the ``uptime`` and after the ``lease_seconds`` that open() is given."""


class Place(ABC):
    """A server's namespace, a directory or a file that is empty at first.

    - lacks: what the broker declares as lacking (``Broker.lacks``), and assumptions that do not hold. Tests
      that ask for one of these are skipped.
    - cannot: other tests that are skipped; the reason by the test's name.
    - fixture: the name of a pytest fixture of yours that must be up meanwhile: it may start a server.
    - in_order: whether what came back, or was delayed, comes out in the order of its first arrival.
    - steps: where it does not, the lowest priority of each step that is told apart, the least urgent first.
    - examples: how many runs test_a_bag_with_leases tries, and how many batches of hostile settlements are.
    - results_url: of the result store whose rows the broker stores beside an ack, where that store has a form
      of its own for them; an object may have its own. Nothing is connected to.

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
        """directory: a new one for each test. Whoever is given the same one is at the same place: make a
        prefix or a name of a database of it where the broker is a server."""
        self.directory = directory

    @abstractmethod
    def open(self, **options: Any) -> Broker:
        """Another broker object on the place, which connects to nothing yet.

        options: any of clock (a ``qworker.clock.Clock``), lease_seconds (a float), uptime (returns the
        seconds that leases run on) and revoke_expires (a float, seconds). What has no meaning for the broker
        may be left out of account where *lacks* says so.
        """

    @abstractmethod
    def count(self) -> int:
        """How many messages there are, in whatever state, not counting dead letters."""

    def result(self, task_id: str) -> tuple[str, bytes] | None:
        """Status and payload of the result that was stored with an ack; None when there is none, and always
        where the broker lacks RESULTS."""
        return None

    def lose(self) -> None:
        """Lose all data behind the brokers' backs, and count from one again, as an empty server does."""
        raise NotImplementedError(f"{type(self).__qualname__}.lose() is to lose all data of the place")

    def clear(self) -> None:  # noqa: B027 - what lies in the directory goes with it
        """Leave nothing behind on the server. It is called when all brokers are closed."""


def mark(broker: Broker, *tags: int) -> bool:
    """Mark *tags* as running, as the children of a worker do; False where such marks are not kept."""
    path = broker.consumer.running_path()
    if path is not None:
        Path(path).write_bytes(b"".join(SLOT.pack(tag) for tag in (0, *tags, 0)))
    return path is not None
