"""Request: one received message in the worker, from its receipt to its settlement.

Comes from:  the Listener, which makes it of a leased message.
Goes to:     EtaSchedule or ReadyQueue, Mediator, TaskPool; at its end a Settlement goes back to the Listener.
Thread:      passed from hand to hand; whoever holds it may write to it.

OUTCOMES is the specification of the worker: what each way to end means for the message, the stored state,
the signal and the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qworker import signals, states
from qworker.clock import to_epoch_in
from qworker.errors import (
    InvalidTaskMessage,
    MessageError,
    NotRegistered,
    QWorkerError,
    TaskExpired,
    TaskRevoked,
    Terminated,
    TimeLimitExceeded,
    WorkerLost,
)
from qworker.message import protocol
from qworker.message.exceptions import exception_to_dict
from qworker.publishing.retry import backoff_delay
from qworker.safe_repr import storable
from qworker.tasks import execution
from qworker.tasks.execution import Outcome
from qworker.transports.lease import Ack, Bury, Leased, Release, Settlement

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

logger = logging.getLogger(__name__)

LOST, TIME_LIMIT, TERMINATED, REVOKED, EXPIRED, INTERRUPTED = (
    "lost", "time limit", "terminated", "revoked", "expired", "interrupted"
)  # fmt: skip
"""Ways to end that the worker decides; the others are the kinds of execution.Outcome."""

SUSPECT_DEATHS = 2
MAX_REDELIVERY_SECONDS = 30.0
"""The longest pause before a message that a death or its own task put back is delivered again."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of OUTCOMES. message: what happens to it. level: of the log line. said: the log line's
    words."""

    message: str
    level: int
    said: str


OUTCOMES: Mapping[str, Rule] = {
    execution.SUCCESS: Rule("ack", logging.INFO, "succeeded in %.6fs: %s"),
    execution.RETRY: Rule("ack", logging.INFO, "will be retried after %.6fs: %s"),
    execution.FAILURE: Rule("ack or dead", logging.ERROR, "raised after %.6fs: %s"),
    execution.IGNORED: Rule("ack", logging.INFO, "was ignored after %.6fs: %s"),
    execution.REJECTED: Rule("requeue or dead", logging.WARNING, "was rejected after %.6fs: %s"),
    execution.INVALID: Rule("dead", logging.ERROR, "cannot be run (after %.6fs): %s"),
    LOST: Rule("redeliver or dead", logging.ERROR, "lost its process: %s"),
    TIME_LIMIT: Rule("ack or dead", logging.ERROR, "was killed: %s"),
    TERMINATED: Rule("ack", logging.WARNING, "was terminated: %s"),
    REVOKED: Rule("ack", logging.INFO, "was revoked: %s"),
    EXPIRED: Rule("ack", logging.INFO, "expired: %s"),
    INTERRUPTED: Rule("requeue", logging.INFO, "was interrupted and goes back: %s"),
}


Key = tuple[int, str, int]


class Request:
    """See the module. eta, expires: epoch seconds or None. time_limit: the hard one, seconds or None.

    key: tag, id and attempt: what the message is known by when it is delivered again. The tag alone would not
    do, since a store that was made anew gives the tags of the old one to other messages."""

    __slots__ = (
        "__weakref__", "acked", "acks_late", "epoch", "eta", "expires", "headers", "id", "is_async",
        "is_suspect", "key",
        "leased", "name", "pid", "revocation", "seconds", "soft_time_limit", "task", "time_limit",
    )  # fmt: skip

    def __init__(self, leased: Leased, epoch: int, headers: dict[str, Any], task: Task[..., Any]) -> None:
        self.leased = leased
        self.epoch = epoch
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
        self.revocation: Any = None
        eta, expires = headers["eta"], headers["expires"]
        self.eta = None if eta is None else _epoch("eta", eta, task)
        self.expires = None if expires is None else _epoch("expires", expires, task)
        hard, soft = headers["timelimit"] or (None, None)
        self.time_limit: float | None = hard or task.time_limit
        self.soft_time_limit: float | None = soft or task.soft_time_limit

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


def _epoch(name: str, text: str, task: Task[..., Any]) -> float:
    """Epoch seconds of a header; one without an offset, as Celery sends it, is in the app's time zone."""
    try:
        return to_epoch_in(text, task.app.conf.timezone)
    except (ValueError, OverflowError):  # at the ends of time
        raise InvalidTaskMessage(f"header {name!r} is {text!r:.80}, not a time") from None


def receive(app: QWorker, leased: Leased, epoch: int, accept: frozenset[str]) -> Request:
    """Make the request of *leased*.

    Raises NotRegistered when nobody here knows the task, another MessageError when the message is no good.
    """
    headers, properties, body = protocol.receive(
        leased.headers, leased.properties, leased.body, accept, app.signer, app.conf.message_max_bytes
    )
    if body is not None:  # protocol 1: the child gets it as protocol 2
        payload = protocol.upgrade(headers, properties, body)
        leased = leased._replace(headers=payload.headers, properties=payload.properties, body=payload.body)
    task = app.tasks.get(headers["task"])
    if task is None:
        raise NotRegistered(headers["task"])
    return Request(leased, epoch, headers, task)


def result_meta(
    app: QWorker, headers: Mapping[str, Any], properties: str | None, error: QWorkerError
) -> dict[str, Any] | None:
    """What to store for a task that the worker itself ends with *error*; None when its result is ignored.

    headers, properties: of its message, the latter as text.
    """
    task = app.tasks.get(headers["task"])
    if headers.get("ignore_result") or (task is not None and task.ignore_result):
        return None
    status = states.REVOKED if isinstance(error, TaskRevoked | Terminated) else states.FAILURE
    meta: dict[str, Any] = app.backend.meta(
        headers["id"], status, exception_to_dict(error), properties=protocol.parse_properties(properties)
    )
    for name, header in (("group_id", "group"), ("parent_id", "parent_id")):
        if headers.get(header):
            meta[name] = headers[header]
    return meta


def finish(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Settle what a run reported: log it, and say what happens to the message."""
    rule = OUTCOMES[outcome.kind]
    level = logging.INFO if outcome.expected else rule.level
    if logger.isEnabledFor(level):
        detail = (
            outcome.traceback if outcome.kind == execution.FAILURE and not outcome.expected else outcome.text
        )
        logger.log(
            level,
            f"Task %s[%s] {rule.said}",
            request.headers.get("shadow") or request.name,
            request.id,
            outcome.runtime,
            f"{outcome.text}\n{detail}" if detail is not None and detail != outcome.text else outcome.text,
        )
    tag = request.tag
    row: Any = outcome.row
    if rule.message == "ack":
        return Ack(tag, row)
    if rule.message == "requeue or dead" and outcome.requeue:
        return Release(tag, _again_at(now, request.leased.parked + 1), parked=True, redelivered=True)
    if rule.message == "ack or dead" and request.task.acks_on_failure_or_timeout:
        return Ack(tag, row)
    return Bury(tag, f"{outcome.kind}: {outcome.text}", row)


def end(
    app: QWorker, request: Request, why: str, how: str, now: float
) -> tuple[Settlement, dict[str, Any] | None]:
    """Settle what the worker ended itself; return that and what to store, None when there is nothing.

    why: one of the constants at the head of this module. how: in words.
    """
    rule, task, tag = OUTCOMES[why], request.task, request.tag
    logger.log(
        rule.level, f"Task %s[%s] {rule.said}", request.headers.get("shadow") or request.name, request.id, how
    )
    if why == INTERRUPTED and not request.acked:
        return Release(tag, redelivered=True), None
    if why in (LOST, INTERRUPTED):
        deliveries = request.leased.deliveries + 1
        limit = task.max_deliveries or 1
        again = task.reject_on_worker_lost and not request.acked
        if again and deliveries < limit:
            return Release(tag, _again_at(now, deliveries), counted=True), None
        error: QWorkerError = WorkerLost(f"{how} (delivery {deliveries} of at most {limit})")
        meta = result_meta(app, request.headers, request.leased.properties, error)
        _tell_failure(request, error)
        return (Bury(tag, str(error), counted=True) if again else Ack(tag)), meta
    if why == TIME_LIMIT:
        error = TimeLimitExceeded(request.time_limit)
        _tell_failure(request, error)
        late = task.acks_on_failure_or_timeout
        return (
            Ack(tag) if late else Bury(tag, f"the hard time limit of {request.time_limit:g} s passed")
        ), result_meta(app, request.headers, request.leased.properties, error)
    error = {TERMINATED: Terminated, EXPIRED: TaskExpired}.get(why, TaskRevoked)(how)
    if signals.task_revoked.receivers:
        signals.task_revoked.send(
            task, request=request, terminated=why == TERMINATED, signum=None, expired=why == EXPIRED
        )
    return Ack(tag), result_meta(app, request.headers, request.leased.properties, error)


def _again_at(now: float, times: int) -> float | None:
    """Epoch second at which a message that is put back for the time number *times* is due again: the first
    time at once (None), then after 1, 2, 4… seconds, so that what comes back for ever does not keep a worker
    busy."""
    if times == 1:
        return None
    return now + backoff_delay(1.0, times - 2, MAX_REDELIVERY_SECONDS, False, lambda: 0.0)


def _tell_failure(request: Request, error: QWorkerError) -> None:
    if signals.task_failure.receivers:
        signals.task_failure.send(
            request.task,
            task_id=request.id,
            exception=error,
            args=None,
            kwargs=None,
            traceback=None,
            einfo=None,
        )


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
