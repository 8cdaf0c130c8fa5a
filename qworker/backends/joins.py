"""Joins: when all members of a group have ended, the body is sent.

Comes from:  publishing, which opens a join before its members are sent; the worker, with the parts of members
             that have ended.
Goes to:     the worker's joiner, which claims finished joins and sends their bodies.
Thread:      any thread may call any method.

A join counts distinct members: a part that arrives twice counts once, and the first one is kept. A part of a
missing join (sent or dropped) is ignored. Finished joins are remembered for a while (``remembered``), because
a task that runs again opens its joins again: they stay finished. One contract suite tests all stores.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from qworker.errors import NotSupported
from qworker.transports.lease import Envelope, Part, Sender

K = TypeVar("K")

MAX_PARTS = 100_000
"""Maximum total of parts returned by one claim(); only the last join may exceed it."""
PUSH_SECONDS = 30.0
"""Duration of a claim from the first attempt to send the body to another store, in seconds."""
DONE_SECONDS = 300.0
"""Minimum time that a finished join is remembered."""
DONE_SECONDS_FOR_EVER = 86400.0
"""Time that a finished join is remembered if joins never expire."""


class Join(NamedTuple):
    """A join to be opened.

    - size: number of members, which are numbered from 0.
    - body: the encoded call that follows. The store does not read it.
    - expires: epoch second at which the join is overdue, even if members are missing. None: never.
    """

    id: str
    size: int
    body: bytes
    expires: float | None = None


class Finished(NamedTuple):
    """A finished or overdue join, claimed by a worker.

    - token: distinguishes this claim from later ones.
    - parts: one for each member that has ended, ordered by number.
    - overdue: it has expired, and parts may be missing.
    - run: the mark RUN for a body without one, because a join of the same name may be opened again; "" if
      there is none.
    - attempt: how often its body was perhaps published under this claim. The first attempt extends the claim.
    """

    id: str
    token: str
    body: bytes
    parts: Sequence[Part]
    overdue: bool = False
    run: str = ""
    attempt: int = 0


class Opening(Protocol):
    """Opens joins whose members are published at the same time."""

    def open(self, joins: Sequence[Join]) -> None:
        """See Joins.open()."""

    def drop(self, joins: Collection[str]) -> None:
        """Delete *joins*, whose members were not published."""


class Joins(ABC):
    """The joins of one result store. Every method raises BackendError when the store is unavailable."""

    @abstractmethod
    def open(self, joins: Sequence[Join]) -> None:
        """Store *joins*, all or none. Joins that exist or are finished are not changed, because opening may
        be retried.

        Raises EncodeError for an id or a size that cannot be stored (``transports/join_parts.py``)."""

    def within(self, sender: Sender) -> Opening | None:
        """Return an Opening in the caller's transaction, in which *sender* publishes; None if that is in
        another store. It raises the errors of the caller's driver."""
        return None

    @abstractmethod
    def grow(self, join: str, task_id: str) -> int | None:
        """Add the call *task_id* to *join*; return its number, which is the same if this is repeated. None if
        the join does not exist or is finished."""

    @abstractmethod
    def add(self, parts: Sequence[Part]) -> None:
        """Record *parts*. May be repeated."""

    @abstractmethod
    def claim(self, limit: int, seconds: float) -> list[Finished]:
        """Claim for *seconds* up to *limit* joins that are finished or overdue, and not claimed. Finished
        joins come first, the oldest of them first.

        Returns fewer when they are large (MAX_PARTS). Writes nothing when there are none."""

    @abstractmethod
    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        """Publish *envelopes*, and record that *join* is done. Return False when the claim has expired:
        another one finishes the join.

        This is one transaction if the messages are in the same store. Otherwise *sender* publishes first, if
        the claim has not expired by then; the first attempt extends it to PUSH_SECONDS, later ones do not, so
        that another worker can take over from one that cannot publish. After an interruption, or if it
        expires meanwhile, the body is published again with the same ids; hold() lets only one of them run.
        """

    @abstractmethod
    def drop(self, joins: Collection[str]) -> None:
        """Delete *joins*; their bodies are never sent."""

    @abstractmethod
    def hold(self, body: str, publication: int, seconds: float) -> int:
        """Return the *publication* whose message of *body*, the id of a task, may run: the first one recorded
        here, for *seconds*. publication: a number below 2**63."""

    def set_size(self, group: str, size: int, run: str = "", delay: float = 0.0) -> None:
        """Set the number of members of the chord of *group*, in Celery's format, before they are published.
        May be repeated. run: the mark RUN of the call; a new run restarts a finished chord. delay: seconds
        until the last member is due.

        Raises NotSupported where chords are not stored in that format.
        """
        raise NotSupported(
            "chords in Celery's format are joined in Redis, but results are not stored there: set "
            "canvas_format = 'auto', or result_backend = 'redis://…'"
        )

    def chord_part(
        self, group: str, number: int, task_id: str, status: str, result: Any, body: bytes
    ) -> Part | None:
        """Return the part of a chord in Celery's format; None if this store has no such chords, which a task
        of Celery then joins.

        result: the value, or the exception as stored. Raises EncodeError when it cannot be serialised.
        """
        return None

    def read_chord_part(self, part: Part) -> Any:
        """Return the value given to chord_part(), or the exception as stored. Raises DamagedResult."""
        raise NotImplementedError("no part here is in Celery's format")

    @abstractmethod
    def count(self) -> int:
        """Return the number of unfinished joins."""


def remembered(expires: float | None, now: float) -> float:
    """Return the epoch second until which a join that finished *now* is remembered. expires: the join's."""
    return now + DONE_SECONDS_FOR_EVER if expires is None else max(expires, now + DONE_SECONDS)
