"""Outcomes: how each kind of end affects the message, the stored state, the signal, the log and the metrics.

Comes from:  Settler, with a request (or an invalid message) and its Outcome.
Goes to:     Settler: the settlement for the broker.
Thread:      any: a table and functions.

OUTCOMES is the worker's specification, and is executed. A message that goes back to the broker has not ended:
no result is stored and no signal is sent, whatever its row says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker import signals, states
from qworker.canvas.membership import is_ignored, parts_of
from qworker.components.request import MOST_DEATHS, Failing, Request, SignalRequest, UnreadableMessage
from qworker.errors import (
    EncodeError,
    InvalidTaskMessage,
    QWorkerError,
    TaskError,
    TaskExpired,
    TaskRevoked,
    Terminated,
    TimeLimitExceeded,
    WorkerLost,
)
from qworker.message import protocol
from qworker.message.exceptions import exception_to_dict
from qworker.message.failures import about_failure
from qworker.message.marks import JOINS
from qworker.message.reading import may_embed
from qworker.publishing.retry import backoff_delay
from qworker.safe_repr import safe_repr
from qworker.tasks import outcome as kinds
from qworker.tasks.followup import error_of_chord
from qworker.tasks.outcome import Outcome
from qworker.transports.lease import Ack, DeadLetter, Part, Release, ResultRow, Settlement

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

MAX_REDELIVERY_SECONDS = 30.0
"""The longest delay before a message is delivered again after a death, or at the task's request."""

# -- the settlement: functions of the request, the outcome, and now in epoch seconds --


def ack(request: Request, outcome: Outcome, now: float) -> Settlement:
    return Ack(request.leased.tag, outcome.row)


def dead_letter(request: Request | UnreadableMessage, outcome: Outcome, now: float) -> Settlement:
    """Dead-letter the message, with the outcome's text as the reason."""
    return DeadLetter(request.tag, outcome.text, outcome.row)


def dead_letter_failed(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Dead-letter the message, with the kind of the end and the text as the reason."""
    return DeadLetter(request.tag, f"{OUTCOMES[outcome.kind].label}: {outcome.text}", outcome.row)


def ack_or_dead_letter(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Ack or dead-letter, by the task's option ``acks_on_failure_or_timeout``."""
    return (ack if request.task.acks_on_failure_or_timeout else dead_letter_failed)(request, outcome, now)


def ack_or_dead_letter_overdue(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Like ack_or_dead_letter(), or deliver_again() if the task treats a time limit as a death."""
    if request.task.again_after_time_limit:
        return deliver_again(request, outcome, now)
    if request.task.acks_on_failure_or_timeout:
        return Ack(request.tag)
    return DeadLetter(request.tag, f"the hard time limit of {request.time_limit:g} s passed")


def put_back(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Requeue the message, with a longer delay each time: the task asked for it, or could not send a call."""
    due = _again_at(now, request.leased.requeued + 1)
    return Release(request.tag, due, requeued=True, redelivered=True)


def deliver_again(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Deliver again after a death, counted and with a longer delay each time; dead-letter after too many."""
    if request.acked or not request.task.reject_on_worker_lost:
        return Ack(request.tag)
    deaths = request.leased.deliveries + 1
    if deaths < (request.task.max_deliveries or 1):
        return Release(request.tag, _again_at(now, deaths), counted=True)
    return DeadLetter(request.tag, str(_worker_lost(request, outcome)), counted=True)


def give_back(request: Request, outcome: Outcome, now: float) -> Settlement:
    """Give back at once, uncounted. A message acked before its run cannot go back."""
    return Ack(request.tag) if request.acked else Release(request.tag, redelivered=True)


def keep(request: Request, outcome: Outcome, now: float) -> None:
    """Return no settlement: the request waits again in this worker."""


def _again_at(now: float, times: int) -> float | None:
    """Return the epoch second at which a message requeued *times* times is due again.

    The first time at once (None), then after 1, 2, 4… seconds, so that such a message does not keep a worker
    busy.
    """
    if times == 1:
        return None
    return now + backoff_delay(1.0, times - 2, MAX_REDELIVERY_SECONDS, False, lambda: 0.0)


# -- the error that is stored --

_ACKED = "its message was acknowledged before it ran"


def _worker_lost(request: Request, outcome: Outcome) -> WorkerLost:
    if request.acked:
        return WorkerLost(f"{outcome.text} ({_ACKED}, so it is not delivered again)")
    if not request.task.reject_on_worker_lost:
        return WorkerLost(outcome.text)
    limit = request.task.max_deliveries or 1
    return WorkerLost(f"{outcome.text} (delivery {request.leased.deliveries + 1} of at most {limit})")


def _as(error: type[QWorkerError]) -> Callable[[Any, Outcome], QWorkerError]:
    """Return a function that makes an *error* with the outcome's text."""
    return lambda request, outcome: error(outcome.text)


def _unknown(request: Request | UnreadableMessage, outcome: Outcome) -> QWorkerError:
    return request.error if isinstance(request, UnreadableMessage) else TaskError(outcome.text)


# -- the signal --


def signal_failure(app: QWorker, request: Request, outcome: Outcome, error: QWorkerError | None) -> None:
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


def signal_rejected(
    app: QWorker, request: Request | UnreadableMessage, outcome: Outcome, error: QWorkerError | None
) -> None:
    if signals.task_rejected.receivers:
        signals.task_rejected.send(app, message=request.leased, exc=outcome.text)


def signal_revoked(app: QWorker, request: Request, outcome: Outcome, error: QWorkerError | None) -> None:
    if signals.task_revoked.receivers:
        request.__class__ = SignalRequest
        signals.task_revoked.send(
            request.task,
            request=request,
            terminated=outcome.kind == kinds.TERMINATED,
            signum=None,
            expired=outcome.kind == kinds.EXPIRED,
        )


# -- the fields of the log line --


def _plain(request: Request, outcome: Outcome) -> tuple[Any, ...]:
    return request.headers.get("shadow") or request.name, request.id, outcome.text


def _timed(request: Request, outcome: Outcome) -> tuple[Any, ...]:
    return request.headers.get("shadow") or request.name, request.id, outcome.runtime, outcome.text


def _traced(request: Request, outcome: Outcome) -> tuple[Any, ...]:
    return *_timed(request, outcome), f"\n{outcome.traceback}" if outcome.traceback else ""


def _of_message(unreadable: UnreadableMessage, outcome: Outcome) -> tuple[Any, ...]:
    return unreadable.headers.get("id") or unreadable.tag, unreadable.leased.queue, outcome.text


def _fate(request: Request | UnreadableMessage, settlement: Settlement | None, now: float) -> str:
    """Describe the dead-lettering or redelivery of the message, for the log line; "" for neither."""
    if isinstance(settlement, DeadLetter):
        acked = isinstance(request, Request) and request.acked
        return f" ({_ACKED}: nothing is kept)" if acked else " (it becomes a dead letter)"
    if not isinstance(settlement, Release) or not (settlement.counted or settlement.requeued):
        return ""
    when = "at once" if settlement.due is None else f"in {max(0.0, settlement.due - now):.0f} s"
    if settlement.requeued:
        return f" (put back, to be delivered again {when})"
    limit = request.task.max_deliveries if isinstance(request, Request) else None
    return f" (delivery {request.leased.deliveries + 1} of at most {limit or 1}; again {when})"


class Rule(NamedTuple):
    """One row of OUTCOMES.

    - message: returns the settlement for the broker; a function of this module.
    - level, log_format, fields: the level and format of the log line, and its values. "": no line.
    - label: its name in metrics and in reasons of dead letters. None: it is not counted.
    - event: Celery's event name, which is logged; events are not sent yet. None: no event.
    - state, error: stored if the run has no result of its own. None: nothing.
    - part: the final state reported to the joins of the call. None: it has not ended.
    - kept: the message of the failed task is kept if the broker keeps failed tasks.
    - report_in_child: a child still has to report the end to the calls in the message.
    - signal: sends the signal. None: there is none, or the child has sent it.
    """

    message: Callable[[Any, Outcome, float], Settlement | None]
    level: int = INFO
    log_format: str = ""
    fields: Callable[[Any, Outcome], tuple[Any, ...]] = _plain
    label: str | None = None
    event: str | None = None
    state: str | None = None
    error: Callable[[Any, Outcome], QWorkerError] | None = None
    part: str | None = None
    kept: bool = False
    report_in_child: bool = False
    signal: Callable[[QWorker, Any, Outcome, QWorkerError | None], None] | None = None


_LOST = Rule(
    deliver_again, ERROR, "Task %s[%s] lost its process: %s",
    label="lost", event="task-failed",
    state=states.FAILURE, error=_worker_lost, signal=signal_failure,
    part=states.FAILURE,
    kept=True,
    report_in_child=True,
)  # fmt: skip
OUTCOMES: dict[str, Rule] = {
    # Ended by its own code.
    kinds.SUCCESS: Rule(
        ack, INFO, "Task %s[%s] succeeded in %.6fs: %s", _timed,
        label="success", event="task-succeeded", part=states.SUCCESS,
    ),
    kinds.RETRY: Rule(
        ack, INFO, "Task %s[%s] ran for %.6fs, to be retried: %s", _timed,
        label="retry", event="task-retried",
    ),
    kinds.FAILURE: Rule(
        ack_or_dead_letter, ERROR, "Task %s[%s] raised after %.6fs: %s%s", _traced,
        label="failure", event="task-failed", state=states.FAILURE, error=_as(TaskError), part=states.FAILURE,
        kept=True,
    ),
    kinds.EXPECTED: Rule(
        ack_or_dead_letter, INFO, "Task %s[%s] raised after %.6fs: %s", _timed,
        label="failure", event="task-failed", state=states.FAILURE, error=_as(TaskError), part=states.FAILURE,
    ),
    kinds.IGNORED: Rule(
        ack, INFO, "Task %s[%s] was ignored after %.6fs: %s", _timed,
        label="ignored", part=states.IGNORED,
    ),
    kinds.REPLACED: Rule(
        ack, INFO, "Task %s[%s] was replaced after %.6fs: %s", _timed,
        label="replaced",
    ),
    kinds.REJECTED: Rule(
        dead_letter_failed, WARNING, "Task %s[%s] was rejected after %.6fs: %s", _timed,
        label="rejected", event="task-rejected", part=states.FAILURE,
    ),
    kinds.REQUEUED: Rule(
        put_back, WARNING, "Task %s[%s] was rejected after %.6fs: %s", _timed,
        label="rejected", event="task-rejected",
    ),
    # Ended by the worker, or by a process.
    kinds.INVALID: Rule(
        dead_letter_failed, ERROR, "Task %s[%s] cannot be run (after %.6fs): %s", _timed,
        label="invalid", event="task-failed",
        state=states.FAILURE, error=_as(InvalidTaskMessage), signal=signal_rejected, part=states.FAILURE,
    ),
    kinds.LOST: _LOST,
    kinds.UNCONFIRMED: _LOST._replace(message=ack, log_format="Task %s[%s] is given up: %s", kept=False),
    kinds.TIME_LIMIT: Rule(
        ack_or_dead_letter_overdue, ERROR, "Task %s[%s] was killed: %s",
        label="time limit", event="task-failed", state=states.FAILURE,
        error=lambda request, _: TimeLimitExceeded(request.time_limit), signal=signal_failure,
        part=states.FAILURE,
        kept=True,
        report_in_child=True,
    ),
    kinds.TERMINATED: Rule(
        ack, WARNING, "Task %s[%s] was terminated: %s",
        label="terminated", event="task-revoked",
        state=states.REVOKED, error=_as(Terminated), signal=signal_revoked, part=states.REVOKED,
        report_in_child=True,
    ),
    kinds.INTERRUPTED: Rule(
        give_back, INFO, "Task %s[%s] was interrupted and is put back: %s",
        label="interrupted", event="task-failed",
        state=states.FAILURE, error=_worker_lost, signal=signal_failure,
        part=states.FAILURE,
    ),
    kinds.UNSTARTED: Rule(keep),
    kinds.LEASE_EXPIRED: Rule(give_back),
    # Not run at all.
    kinds.REVOKED: Rule(
        ack, INFO, "Task %s[%s] was revoked: %s",
        label="revoked", event="task-revoked",
        state=states.REVOKED, error=_as(TaskRevoked), signal=signal_revoked, part=states.REVOKED,
        report_in_child=True,
    ),
    kinds.EXPIRED: Rule(
        ack, INFO, "Task %s[%s] expired: %s",
        label="expired", event="task-revoked",
        state=states.REVOKED, error=_as(TaskExpired), signal=signal_revoked, part=states.REVOKED,
        report_in_child=True,
    ),
    kinds.POISONED: Rule(
        dead_letter, INFO, "Task %s[%s] is not run: %s",
        event="task-failed", state=states.FAILURE, error=_as(WorkerLost), part=states.FAILURE,
        report_in_child=True,
    ),
    kinds.COPY: Rule(ack, WARNING, "Task %s[%s] is not run: %s", signal=signal_rejected),
    kinds.UNKNOWN: Rule(
        dead_letter, ERROR, "message %s in %s cannot be run: %s", _of_message,
        event="task-failed", state=states.FAILURE, error=_unknown,
        part=states.FAILURE,
    ),
    kinds.UNREADABLE: Rule(
        dead_letter, ERROR, "message %s in %s cannot be run: %s", _of_message,
        signal=signal_rejected,
    ),
}  # fmt: skip
"""The consequences of every kind of Outcome."""

STATES: dict[str, str | None] = {kinds.RETRY: states.RETRY, kinds.REJECTED: states.REJECTED}
"""The state of a call in a log line, if none is stored."""


def end(
    app: QWorker, request: Request | UnreadableMessage, outcome: Outcome, now: float
) -> Settlement | None:
    """Apply OUTCOMES to *outcome* at the epoch second *now*.

    Return the settlement, with the result to store, or None if the request waits again.
    """
    rule = OUTCOMES[outcome.kind]
    settlement = rule.message(request, outcome, now)
    if rule.log_format and logger.isEnabledFor(rule.level):
        ended = isinstance(settlement, Ack | DeadLetter)
        state = STATES.get(outcome.kind, rule.state or rule.part) if ended else states.PENDING
        extra = _extra(rule, request, outcome, state)
        described = outcome._replace(text=outcome.text + _fate(request, settlement, now))
        logger.log(rule.level, rule.log_format, *rule.fields(request, described), extra=extra)
    if not isinstance(settlement, Ack | DeadLetter):
        return settlement
    settlement = _completed(app, rule, request, outcome, settlement)
    if not outcome.stored or (isinstance(request, Request) and request.acked):
        return settlement  # only the row carries the parts of a message acked before its run
    return settlement._replace(row=None)


def _completed(
    app: QWorker,
    rule: Rule,
    request: Request | UnreadableMessage,
    outcome: Outcome,
    settlement: Ack | DeadLetter,
) -> Ack | DeadLetter:
    """Return *settlement* with the parts and row of *rule*, or to keep the message; send the signal."""
    if rule.part is not None and (JOINS in request.headers or outcome.parts):
        parts = *parts_of(request.headers, rule.part), *(Part(*part) for part in outcome.parts)
        settlement = settlement._replace(parts=parts)
    if rule.state is None and rule.signal is None:
        return settlement
    error = None if rule.error is None else rule.error(request, outcome)
    if rule.kept and type(settlement) is Ack and _is_kept(app, request):
        why = outcome.text if outcome.traceback else safe_repr(error)
        settlement = DeadLetter(
            settlement.tag,
            about_failure(why, outcome.traceback),
            settlement.row,
            parts=settlement.parts,
            failed=True,
        )
    if rule.state is not None and error is not None and settlement.row is None:
        # If a child reported the end, it has made the row.
        reported_row = outcome.row if isinstance(request, Request) and request.failing is not None else None
        stored = error_of_chord(app, outcome.kind, request.headers) or exception_to_dict(error)
        settlement = settlement._replace(row=reported_row or _row(app, request, rule.state, stored))
    if rule.signal is not None:
        rule.signal(app, request, outcome, error)
    return settlement


def _extra(
    rule: Rule, request: Request | UnreadableMessage, outcome: Outcome, state: str | None
) -> dict[str, Any]:
    """Return the additional attributes of the log record, for JSON lines and the user's handlers."""
    headers = request.headers
    extra = {
        "task_id": headers.get("id"),
        "task_name": headers.get("task"),
        "state": state,
        "runtime": outcome.runtime,
        "queue": request.leased.queue,
        "retries": headers.get("retries") or 0,
    }
    if rule.event is not None:
        extra["event"] = rule.event
    return extra


def _is_kept(app: QWorker, request: Request | UnreadableMessage) -> bool:
    """Return whether the message of the failed *request* still exists and should be kept."""
    if not isinstance(request, Request) or request.acked or not request.task.keep_failed:
        return False
    return "failed" in app.broker.letters


def failing(app: QWorker, request: Request, outcome: Outcome, now: float) -> Failing | None:
    """Return what a child must report before *outcome* is settled: to the calls in the message of *request*,
    and in an extended result, with the arguments. Where hooks can kill the process, the child looks for the
    stored end. None if there is nothing to report, the message goes back to the broker, or a child has
    reported it."""
    rule = OUTCOMES[outcome.kind]
    if not rule.report_in_child or request.failing is not None:
        return None
    task = request.task
    in_result = app.conf.result_extended and not is_ignored(request.headers, task.ignore_result)
    stored = task.sees_its_end  # perhaps, before its hook killed the process
    if not (in_result or stored or task.has_on_terminated or may_embed(request.leased.body)):
        return None
    settled = isinstance(rule.message(request, outcome, now), Ack | DeadLetter)
    if not settled or rule.state is None or rule.error is None:
        return None
    deaths = 0
    if outcome.kind == kinds.POISONED:
        # Any death after those allowed was that of a worker that reported the end, as in a pool of threads.
        deaths = min(MOST_DEATHS, request.leased.deliveries - (request.task.max_deliveries or 1))
    return Failing(outcome, rule.state, exception_to_dict(rule.error(request, outcome)), deaths)


def _row(
    app: QWorker, request: Request | UnreadableMessage, state: str, error: Mapping[str, Any]
) -> ResultRow | None:
    """Return the result of a task that the worker ends with *error* (as stored); None if it is ignored or
    unknown."""
    headers = request.headers
    task = app.tasks.get(headers.get("task", ""))
    stores_errors = task is not None and task.store_errors_even_if_ignored
    if not headers or (not stores_errors and is_ignored(headers, task is not None and task.ignore_result)):
        return None
    meta: dict[str, Any] = app.backend.meta(
        headers["id"],
        state,
        error,
        properties=protocol.parse_properties(request.leased.properties),
    )
    for name, header in (("group_id", "group"), ("parent_id", "parent_id")):
        if headers.get(header):
            meta[name] = headers[header]
    if app.conf.result_extended:  # as far as the headers tell
        meta |= {
            "name": headers.get("task"),
            "retries": headers.get("retries"),
            "queue": request.leased.queue,
        }
    try:
        return app.backend.row(headers["id"], meta)
    except EncodeError as why:
        logger.error("the end of task %s cannot be stored: %s", headers["id"], why)
        return None
