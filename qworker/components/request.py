"""Request: one received message in the worker, from its receipt to its settlement.

Comes from:  Intake, which makes it of a leased message.
Goes to:     ScheduleController or ReadyQueue, Mediator, TaskPool; at its end to Settler.
Thread:      passed from hand to hand; whoever holds it may write to it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.clock import to_epoch_in
from qworker.errors import InvalidTaskMessage, MessageError, NotRegistered
from qworker.message import protocol
from qworker.message.marks import FAILED
from qworker.safe_repr import storable
from qworker.tasks.outcome import Outcome
from qworker.transports.lease import Leased

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

SUSPECT_DEATHS = 2
MOST_DEATHS = 2
"""So many children may die of the errbacks of one request."""

Key = tuple[int, str, int]


class Failing(NamedTuple):
    """How a request has ended that a child is still to have told to the calls in its message.

    state: what is stored. error: the exception, as it is stored. deaths: how many children have died of it,
    since one of its errbacks may kill them. After the second none of these is called any more, after the
    third nobody is told.
    """

    outcome: Outcome
    state: str
    error: dict[str, Any]
    deaths: int = 0

    def told(self) -> tuple[str, str, str, dict[str, Any], bool]:
        """As plain values: kind, text, state, error, whether errbacks are called."""
        return self.outcome.kind, self.outcome.text, self.state, self.error, self.deaths < MOST_DEATHS


class Request:
    """See the module. eta, expires: epoch seconds or None. time_limit: the hard one, seconds or None.

    starts_before: a time as clock.uptime() has it, before which it has to start: from then on another worker
    may have it. inf: nobody else has it.

    key: tag, id and attempt: what the message is known by when it is delivered again. The tag alone would not
    do, since a store that was made anew gives the tags of the old one to other messages."""

    __slots__ = (
        "__weakref__",
        "acked",
        "acks_late",
        "eta",
        "expires",
        "failing",
        "generation",
        "headers",
        "id",
        "is_async",
        "is_suspect",
        "key",
        "leased",
        "name",
        "pid",
        "revocation",
        "seconds",
        "soft_time_limit",
        "starts_before",
        "task",
        "time_limit",
    )  # fmt: skip

    def __init__(
        self, leased: Leased, generation: int, headers: dict[str, Any], task: Task[..., Any]
    ) -> None:
        self.leased = leased
        self.generation = generation
        self.headers = headers
        self.task = task
        self.id: str = headers["id"]
        self.name: str = headers["task"]
        self.key: Key = (leased.tag, self.id, headers["retries"])
        self.is_async = task.is_async
        self.is_suspect = leased.deliveries > 0 and suspect(leased.deliveries, task.max_deliveries)
        self.acks_late = bool(task.acks_late)
        self.acked = False
        self.pid = 0
        self.seconds = 0.0  # that it is expected to take
        self.starts_before = math.inf
        self.revocation: Any = None
        self.failing: Failing | None = None
        eta, expires = headers["eta"], headers["expires"]
        self.eta = None if eta is None else _epoch("eta", eta, task)
        # The body of a chord that has failed is not too late: what is left is to tell its errbacks. (What an
        # errback is told of stands under the same name, and is a mapping.)
        if expires is None or isinstance(headers.get(FAILED), str):
            self.expires = None
        else:
            self.expires = _epoch("expires", expires, task)
        hard, soft = headers["timelimit"] or (None, None)
        self.time_limit: float | None = hard or task.time_limit
        self.soft_time_limit: float | None = soft or task.soft_time_limit

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What its headers say, for receivers of signals: Celery's requests have root_id, stamps, …"""
            if name != "headers" and name in self.headers:
                return self.headers[name]
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def mark_acked(self) -> None:
        """Note that the broker has it no more: nobody else can run it, however late it starts here."""
        self.acked = True
        self.starts_before = math.inf

    @property
    def tag(self) -> int:
        return self.leased.tag

    def describe(self) -> dict[str, Any]:
        """The request as ``inspect active`` shows it."""
        headers, leased = self.headers, self.leased
        return {
            "id": self.id,
            "name": self.name,
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "hostname": headers.get("origin"),
            "acknowledged": self.acked,
            "worker_pid": self.pid or None,
            "delivery_info": {
                "exchange": "",
                "routing_key": leased.queue,
                "priority": leased.priority,
                "redelivered": leased.redelivered,
            },
        }

    def __repr__(self) -> str:
        return f"<Request {self.name}[{self.id}]>"


class Stranger:
    """A message of which no request is made: *error* says why. headers: {} when they cannot be read."""

    __slots__ = ("acked", "error", "headers", "leased")

    def __init__(self, leased: Leased, error: MessageError, headers: Mapping[str, Any]) -> None:
        self.leased = leased
        self.error = error
        self.headers = headers
        self.acked = False

    @property
    def tag(self) -> int:
        return self.leased.tag


def _epoch(name: str, text: str, task: Task[..., Any]) -> float:
    """Epoch seconds of a header; one without an offset, as Celery sends it, is in the app's time zone."""
    try:
        return to_epoch_in(text, task.app.conf.timezone)
    except (ValueError, OverflowError):  # at the ends of time
        raise InvalidTaskMessage(f"header {name!r} is {text!r:.80}, not a time") from None


def receive(
    app: QWorker,
    leased: Leased,
    generation: int,
    accept: frozenset[str],
    stand_in: Task[..., Any] | None = None,
) -> Request:
    """Make the request of *leased*. stand_in: the task of one that is not to run, when its own is not known.

    Raises NotRegistered when nobody here knows the task, another MessageError when the message is no good.
    """
    headers, properties, body = protocol.receive(
        leased.headers, leased.properties, leased.body, accept, app.signer, app.conf.message_max_bytes
    )
    if body is not None:  # protocol 1: the child gets it as protocol 2
        payload = protocol.upgrade(headers, properties, body)
        leased = leased._replace(headers=payload.headers, properties=payload.properties, body=payload.body)
    task = app.tasks.get(headers["task"], stand_in)
    if task is None:
        raise NotRegistered(headers["task"])
    return Request(leased, generation, headers, task)


def poison(leased: Leased, limit: int) -> bool:
    """Whether the deaths that *leased* has met with are as many as are allowed."""
    return leased.deliveries >= limit


def suspect(deaths: int, limit: int | None) -> bool:
    """Whether a task that has met with so many deaths is to run apart from others: from the second one on,
    the first being taken for an accident; earlier where one more would be too many."""
    return deaths >= max(1, min(SUSPECT_DEATHS, (limit or SUSPECT_DEATHS + 1) - 1))


def refusal(error: MessageError) -> str:
    """The reason that goes beside a message into the dead letters."""
    return storable(f"{type(error).__name__}: {error}")
