"""Preparation: makes a task, its context and its arguments from a message.

Comes from:  a pool child or a pool thread that is about to run a job.
Goes to:     execution.
Thread:      the one that runs the job. Bodies are decoded only here, never in the worker's own threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import MessageError
from qworker.message import protocol
from qworker.message.chain_text import decode_carrier
from qworker.message.context import Context
from qworker.tasks import copies, execution
from qworker.tasks.builtins import STAND_IN
from qworker.tasks.execution import ignores_result
from qworker.tasks.outcome import NOT_STARTED, Outcome
from qworker.transports.lease import Leased, ResultRow

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.components.request import Request
    from qworker.tasks.task import Task


class Prepared(NamedTuple):
    """A task ready to run. soft, hard: limits in seconds, None for none."""

    task: Task[..., Any]
    context: Context
    body: protocol.Body
    soft: float | None
    hard: float | None


def prepare(
    app: QWorker,
    accept: frozenset[str],
    hostname: str,
    headers: Mapping[str, Any],
    leased: Leased,
    failing: object = None,
) -> Prepared:
    """Decode the body and make the context.

    - accept: content types allowed for a body.
    - headers: the parsed headers of *leased*.
    - failing: not None if it does not run; then its task may be unknown.

    Raises MessageError for an invalid message (NotRegistered for an unknown task).
    """
    properties = protocol.parse_properties(leased.properties)
    name = headers["task"]
    task = app.tasks[name if failing is None or name in app.tasks else STAND_IN]
    # The listener has verified the signature before using anything in the message.
    limit = app.conf.message_max_bytes
    body = decode_carrier(leased.body, headers, properties, accept, limit=limit)
    context = Context.from_message(
        headers,
        body,
        properties=properties,
        delivery_info={
            "exchange": "",
            "routing_key": leased.queue,
            "priority": leased.priority,
            "redelivered": leased.redelivered,
            "delivery_tag": leased.tag,
        },
        hostname=hostname,
        deliveries=leased.deliveries + 1,
        task=task,
    )
    hard, soft = headers["timelimit"] or (None, None)
    return Prepared(task, context, body, soft or task.soft_time_limit, hard or task.time_limit)


def prepared_or_ended(
    app: QWorker,
    accept: frozenset[str],
    hostname: str,
    headers: Mapping[str, Any] | None,
    leased: Leased,
    failing: object,
    starts_before: float,
) -> Prepared | Outcome:
    """Return prepare(), or the outcome of an invalid message, or of one that another worker may have by now,
    because this one was frozen. headers: None to parse those of *leased*."""
    try:
        headers = protocol.parse_headers(leased.headers) if headers is None else headers
        prepared = prepare(app, accept, hostname, headers, leased, failing)
    except (MessageError, RecursionError) as error:
        return execution.invalid(error)
    return prepared if app.clock.uptime() < starts_before else NOT_STARTED


def prepared_request(
    app: QWorker, accept: frozenset[str], hostname: str, request: Request
) -> Prepared | Outcome:
    """Like prepared_or_ended(), in the process of the worker."""
    leased, failing = request.leased, request.failing
    return prepared_or_ended(app, accept, hostname, request.headers, leased, failing, request.starts_before)


def started_row(app: QWorker, prepared: Prepared) -> ResultRow | None:
    """Return the row of the state STARTED; None if it is not stored. A copy does not start: if its result was
    deleted meanwhile, nothing would end the state."""
    task, context = prepared.task, prepared.context
    if not task.track_started or ignores_result(context, task) or copies.refused(app, task, context):
        return None
    return execution.started(app, task, context)
