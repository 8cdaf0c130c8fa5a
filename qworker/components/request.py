"""Request: one received message in the worker, from its receipt to its settlement.

Comes from:  Intake, which makes it from a leased message.
Goes to:     ScheduleController or ReadyQueue, Mediator, TaskPool; finally to Settler.
Thread:      passed between threads; the current owner may write to it.
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
"""The maximum number of children that errbacks and hooks of one request may kill."""

Key = tuple[int, str, int]


class Failing(NamedTuple):
    """The end of a request that a child still has to report to the calls in its message.

    - state: to be stored.
    - error: the stored exception.
    - deaths: the number of children that died while reporting it, because an errback or a hook may kill them.
      After two, none is run, but messages are sent; after three, no callback or errback is sent; after four,
      nothing is reported.
    """

    outcome: Outcome
    state: str
    error: dict[str, Any]
    deaths: int = 0

    def as_plain(self) -> tuple[str, str, str, dict[str, Any], bool, bool]:
        """Return it as plain values: kind, text, state, error, whether errbacks and hooks are run, and
        whether callbacks and errbacks are sent."""
        runs, sends = self.deaths < MOST_DEATHS, self.deaths <= MOST_DEATHS
        return self.outcome.kind, self.outcome.text, self.state, self.error, runs, sends


class Request:
    """A received message.

    - eta, expires: epoch seconds or None.
    - time_limit: the hard limit in seconds, or None.
    - starts_before: the clock.uptime() by which it has to start, because another worker may have it
      afterwards; inf if none can.
    - key: tag, id and attempt, which identify the message when it is delivered again. The tag alone is not
      enough, because a recreated store reuses tags.
    """

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
        "tag",
        "task",
        "time_limit",
    )  # fmt: skip

    def __init__(
        self, leased: Leased, generation: int, headers: dict[str, Any], task: Task[..., Any]
    ) -> None:
        self.leased = leased
        self.tag = leased.tag
        self.generation = generation
        self.headers = headers
        self.task = task
        self.id: str = headers["id"]
        self.name: str = headers["task"]
        self.key: Key = (leased.tag, self.id, headers["retries"])
        self.is_async = task.is_async
        self.is_suspect = leased.deliveries > 0 and is_suspected(leased.deliveries, task.max_deliveries)
        self.acks_late = bool(task.acks_late)
        self.acked = False
        self.pid = 0
        self.seconds = 0.0  # expected duration
        self.starts_before = math.inf
        self.revocation: Any = None
        self.failing: Failing | None = None
        eta, expires = headers["eta"], headers["expires"]
        self.eta = None if eta is None else _epoch("eta", eta, task)
        # The body of a failed chord does not expire, because its errbacks must still be called. For an
        # errback, this header is a mapping that describes the failure.
        if expires is None or isinstance(headers.get(FAILED), str):
            self.expires = None
        else:
            self.expires = _epoch("expires", expires, task)
        hard, soft = headers["timelimit"] or (None, None)
        self.time_limit: float | None = hard or task.time_limit
        self.soft_time_limit: float | None = soft or task.soft_time_limit

    def mark_acked(self) -> None:
        """Record that the broker no longer has the message, so no other worker can run it."""
        self.acked = True
        self.starts_before = math.inf

    def describe(self) -> dict[str, Any]:
        """Return the request as shown by ``inspect active``."""
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


class SignalRequest(Request):
    """The class of requests that receivers of signals have got: with their headers as attributes, too, like
    Celery's requests, which have ``root_id``, ``stamps``, … A ``__getattr__`` in Request itself would make
    each access to its attributes five times as slow, by about 0.03 µs."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "headers" and name in self.headers:
                return self.headers[name]
            raise AttributeError(f"'Request' object has no attribute {name!r}")


class UnreadableMessage:
    """A message that cannot be read because of *error*. headers: {} if they cannot be read either."""

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
    """Return the epoch seconds of a header. Without an offset, as sent by Celery, it is in the app's zone."""
    try:
        return to_epoch_in(text, task.app.conf.timezone)
    except (ValueError, OverflowError):  # at the limits of the calendar
        raise InvalidTaskMessage(f"header {name!r} is {text!r:.80}, not a time") from None


def receive(
    app: QWorker,
    leased: Leased,
    generation: int,
    accept: frozenset[str],
    stand_in: Task[..., Any] | None = None,
) -> Request:
    """Make a request from *leased*. stand_in: replaces an unknown task, for a request that does not run.

    Raises NotRegistered for an unknown task, another MessageError for an invalid message.
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


def is_poisoned(leased: Leased, limit: int) -> bool:
    """Return whether the number of deaths of *leased* has reached *limit*."""
    return leased.deliveries >= limit


def is_suspected(deaths: int, limit: int | None) -> bool:
    """Return whether a task with this number of deaths runs alone: from the second death, because the first
    may be an accident, or from the last one before *limit*."""
    return deaths >= max(1, min(SUSPECT_DEATHS, (limit or SUSPECT_DEATHS + 1) - 1))


def refusal(error: MessageError) -> str:
    """Return the reason stored with a dead letter."""
    return storable(f"{type(error).__name__}: {error}")
