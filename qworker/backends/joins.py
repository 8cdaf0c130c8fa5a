"""Joins: what waits for all members of a group, and then has their body sent.

Comes from:  publishing, which opens a join before its members are sent; the worker, with the parts of members
             that have ended.
Goes to:     the worker's joiner, which claims the joins that are finished and sends their bodies.
Thread:      every method from any thread, as those of the Backend beside it.

A join counts distinct members: a part that comes twice counts once, and the first one stands. A part of a
join that is not there (it was sent, or dropped) counts nowhere. What was finished is remembered for a while
(``remembered``): a task that comes again opens its joins again, and they stay done. One contract suite holds
for all stores.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from qworker.errors import NotSupported
from qworker.transports.lease import Envelope, Part, Sender

K = TypeVar("K")

MAX_PARTS = 100_000
"""Of all joins in what one claim() returns: the join that goes over it is the last."""
PUSH_SECONDS = 30.0
"""For how long a claim stands at least when a body is sent to another store."""
DONE_SECONDS = 300.0
"""For how long it is remembered at least that a join was finished; and"""
DONE_SECONDS_FOR_EVER = 86400.0
"""for how long where joins never expire."""


class Join(NamedTuple):
    """A join that is to be opened.

    - size: how many members there are; their numbers go from 0.
    - body: the call that follows, as the one who opened it wrote it. The store does not read it.
    - expires: epoch seconds at which it is given up, finished or not. None: never.
    """

    id: str
    size: int
    body: bytes
    expires: float | None = None


class Finished(NamedTuple):
    """A join of which all parts are there, claimed by a worker.

    - token: tells this claim from a later one.
    - parts: one a member, in the order of their numbers.
    - overdue: it has expired, and parts may be missing.
    - run: the mark RUN of its body, should that have none: the join may begin anew under its name. "": none.
    """

    id: str
    token: str
    body: bytes
    parts: Sequence[Part]
    overdue: bool = False
    run: str = ""


class Opening(Protocol):
    """What opens joins whose members are published at the same time."""

    def open(self, joins: Sequence[Join]) -> None:
        """As Joins has it."""

    def drop(self, joins: Collection[str]) -> None:
        """Forget *joins*, no member of which was published."""


class Joins(ABC):
    """The joins of one result store. Every method raises BackendError when the store does not answer."""

    @abstractmethod
    def open(self, joins: Sequence[Join]) -> None:
        """Keep *joins*, all or none. One that is there already, or was finished, stays as it is: who opens
        is tried again.

        Raises EncodeError for an id or a size that cannot be kept (``transports/join_parts.py``)."""

    def within(self, sender: Sender) -> Opening | None:
        """What opens joins in the transaction in which *sender* publishes, a transaction of the caller's. Its
        errors are those of the caller's driver. None where that is one of another store."""
        return None

    @abstractmethod
    def grow(self, join: str, task_id: str) -> int | None:
        """Let *join* wait for the call *task_id*, too; return the number of that member, which stays the same
        when this is done again. None when there is no such join or all its parts are there."""

    @abstractmethod
    def add(self, parts: Sequence[Part]) -> None:
        """Record *parts*. May be repeated."""

    @abstractmethod
    def claim(self, limit: int, seconds: float) -> list[Finished]:
        """Claim up to *limit* joins that are finished or overdue, and that nobody has claimed within
        the *seconds* that his claim lasts; the finished first, and of them the oldest.

        There are fewer when they are large (MAX_PARTS). Writes nothing when none is there."""

    @abstractmethod
    def finish(self, join: Finished, envelopes: Sequence[Envelope], sender: Sender) -> bool:
        """Publish *envelopes*, and keep of *join* that it was finished; False, and nothing is published,
        when the claim is no longer ours.

        In one transaction where the messages are kept in the same store. Elsewhere *sender* publishes first:
        who is cut short there publishes them again, with the same ids. Of these one runs, by hold().
        """

    @abstractmethod
    def drop(self, joins: Collection[str]) -> None:
        """Forget *joins*; their bodies are never sent."""

    @abstractmethod
    def hold(self, body: str, publication: int, seconds: float) -> int:
        """Write down for *seconds* that of the messages of *body* (the id of a task) that of *publication*, a
        number below 2**63, is the one to run, unless one is written down; return which one is."""

    def set_size(self, group: str, size: int, run: str = "", delay: float = 0.0) -> None:
        """Say of how many members the chord of *group* is, in Celery's layout, before they are published.
        May be repeated. run: the mark RUN of the call; at the first time of each, one that was finished
        begins anew, else it stays done. delay: in how many seconds the last of them is due.

        Raises NotSupported where chords are not kept in that layout.
        """
        raise NotSupported(
            "chords in Celery's format are joined in Redis, and results are not kept there: say "
            "canvas_format = 'auto', or result_backend = 'redis://…'"
        )

    def chord_part(
        self, group: str, number: int, task_id: str, status: str, result: Any, body: bytes
    ) -> Part | None:
        """The part of a chord in Celery's layout; None where there are none: a task of Celery's joins it.

        result: the value, or the exception as it is stored. Raises EncodeError when it cannot be serialised.
        """
        return None

    def read_chord_part(self, part: Part) -> Any:
        """The value that chord_part() was given, or the exception as it is stored. Raises DamagedResult."""
        raise NotImplementedError("no part here is in Celery's layout")

    @abstractmethod
    def count(self) -> int:
        """How many joins there are that are not finished."""


def remembered(expires: float | None, now: float) -> float:
    """Until when (epoch seconds) it is remembered that a join was finished *now*, which was to be given up
    when it *expires*."""
    return now + DONE_SECONDS_FOR_EVER if expires is None else max(expires, now + DONE_SECONDS)


def fitting(found: Iterable[tuple[K, int]]) -> list[K]:
    """The keys of those joins, each with its size, that one claim() may return."""
    keys: list[K] = []
    total = 0
    for key, size in found:
        if total >= MAX_PARTS:
            break
        total += size
        keys.append(key)
    return keys
