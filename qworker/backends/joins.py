"""Joins: they wait for all members of a group, then their body is sent.

Comes from:  publishing, which opens a join before its members are sent; the worker, with the parts of members
             that have ended.
Goes to:     the worker's joiner, which claims finished joins and sends their bodies.
Thread:      every method from any thread, like those of Backend.

A join counts distinct members: a part that arrives twice counts once, and the first one is kept. A part of a
missing join (sent or dropped) is ignored. Finished joins are remembered for a while (``remembered``): a task
that runs again opens its joins again, and they stay finished. One contract suite applies to all stores.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from qworker.errors import NotSupported
from qworker.transports.lease import Envelope, Part, Sender

K = TypeVar("K")

MAX_PARTS = 100_000
"""Maximum parts of all joins returned by one claim(); the join that exceeds it is the last."""
PUSH_SECONDS = 30.0
"""Minimum duration of a claim when a body is sent to another store."""
DONE_SECONDS = 300.0
"""How long a finished join is remembered at least; and"""
DONE_SECONDS_FOR_EVER = 86400.0
"""how long where joins never expire."""


class Join(NamedTuple):
    """A join to be opened.

    - size: number of members, which are numbered from 0.
    - body: the call that follows, as written by the opener. The store does not read it.
    - expires: epoch second at which it is given up, finished or not. None: never.
    """

    id: str
    size: int
    body: bytes
    expires: float | None = None


class Finished(NamedTuple):
    """A join whose parts are all there, claimed by a worker.

    - token: distinguishes this claim from a later one.
    - parts: one for each member, ordered by number.
    - overdue: it has expired, and parts may be missing.
    - run: the mark RUN of its body, in case the body has none: the join may begin anew under its name. "" if
      there is none.
    """

    id: str
    token: str
    body: bytes
    parts: Sequence[Part]
    overdue: bool = False
    run: str = ""


class Opening(Protocol):
    """Opens joins whose members are published at the same time."""

    def open(self, joins: Sequence[Join]) -> None:
        """See Joins.open()."""

    def drop(self, joins: Collection[str]) -> None:
        """Delete *joins*; no member of them was published."""


class Joins(ABC):
    """The joins of one result store. Every method raises BackendError when the store is unavailable."""

    @abstractmethod
    def open(self, joins: Sequence[Join]) -> None:
        """Store *joins*, all or none. One that exists already, or was finished, is unchanged, because opening
        may be retried.

        Raises EncodeError for an id or a size that cannot be stored (``transports/join_parts.py``)."""

    def within(self, sender: Sender) -> Opening | None:
        """Return an Opening in the transaction of the caller in which *sender* publishes. Its errors are
        those of the caller's driver. None if that transaction is in another store."""
        return None

    @abstractmethod
    def grow(self, join: str, task_id: str) -> int | None:
        """Add the call *task_id* to *join*; return its number, which is the same if this is repeated. None
        when the join does not exist or all its parts are there."""

    @abstractmethod
    def add(self, parts: Sequence[Part]) -> None:
        """Record *parts*. May be repeated."""

    @abstractmethod
    def claim(self, limit: int, seconds: float) -> list[Finished]:
        """Claim up to *limit* joins that are finished or overdue and not claimed; a claim lasts *seconds*.
        Finished joins come first, the oldest of them first.

        Returns fewer when they are large (MAX_PARTS). Writes nothing when there is none."""

    @abstractmethod
    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        """Publish *envelopes*, and record that *join* was finished; False, without publishing, when the claim
        has expired.

        This is one transaction if the messages are in the same store. Otherwise *sender* publishes first:
        after an interruption the body is published again, with the same ids, and hold() lets one of them run.
        """

    @abstractmethod
    def drop(self, joins: Collection[str]) -> None:
        """Delete *joins*; their bodies are never sent."""

    @abstractmethod
    def hold(self, body: str, publication: int, seconds: float) -> int:
        """Record for *seconds* that the message of *publication*, a number below 2**63, is the one of *body*
        (the id of a task) that runs, unless one is recorded already; return the recorded one."""

    def set_size(self, group: str, size: int, run: str = "", delay: float = 0.0) -> None:
        """Set the number of members of the chord of *group*, in Celery's format, before they are published.
        May be repeated. run: the mark RUN of the call; the first time for each run, a finished chord begins
        anew, otherwise it stays finished. delay: seconds until the last member is due.

        Raises NotSupported where chords are not stored in that format.
        """
        raise NotSupported(
            "chords in Celery's format are joined in Redis, and results are not kept there: say "
            "canvas_format = 'auto', or result_backend = 'redis://…'"
        )

    def chord_part(
        self, group: str, number: int, task_id: str, status: str, result: Any, body: bytes
    ) -> Part | None:
        """Return the part of a chord in Celery's format; None where there are none: a Celery task joins it.

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
    """Return until when (epoch seconds) a join finished *now*, which *expires* at that time, is
    remembered."""
    return now + DONE_SECONDS_FOR_EVER if expires is None else max(expires, now + DONE_SECONDS)


def fitting(found: Iterable[tuple[K, int]]) -> list[K]:
    """Return the keys of the joins, each with its size, that one claim() may return."""
    keys: list[K] = []
    total = 0
    for key, size in found:
        if total >= MAX_PARTS:
            break
        total += size
        keys.append(key)
    return keys
