"""Chord unlock: polls for the members of a chord, for Celery's result stores that cannot count them.

Comes from:  Celery producers with results in an SQL database or in files: they publish this task with the
             header of each chord.
Goes to:     the result store, where it checks whether all members have ended; the broker, with the body or
             the next check.
Thread:      the one that runs the task.

Between two checks it waits in the broker, without using a slot. qworker's own chords use joins instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from qworker import states
from qworker.canvas.signatures import signature
from qworker.contracts import App, Task
from qworker.errors import (
    BackendError,
    BrokerUnavailable,
    DamagedResult,
    MaxRetriesExceeded,
    PublishError,
    QWorkerError,
)
from qworker.message.exceptions import exception_of
from qworker.publishing.transactions import sender
from qworker.results.group_result import ResultSet
from qworker.results.result import result_from_tuple
from qworker.safe_repr import safe_repr
from qworker.tasks import followup
from qworker.transports.lease import Part

logger = logging.getLogger(__name__)

_AWAY = (BackendError, BrokerUnavailable)


def unlock_chord(
    task: Task,
    group_id: str,
    callback: Mapping[str, Any],
    interval: float | None = None,
    max_retries: int | None = None,
    result: Any = None,
    **more: Any,
) -> None:
    """Run as *task*, ``celery.chord_unlock``, with Celery's arguments."""
    app = task.app
    pause = app.conf.result_chord_retry_interval if interval is None else interval
    members = [result_from_tuple(each, app) for each in result]
    ids = list(_ids(members))
    try:
        found = app.backend.read_many(ids)
    except BackendError as error:
        task.retry(exc=error, countdown=pause, max_retries=max_retries)
    if not all(_ended(found.get(task_id)) for task_id in ids):
        try:
            task.retry(countdown=pause, max_retries=max_retries)
        except (MaxRetriesExceeded, PublishError) as error:  # there will be no further check
            _fail(app, group_id, callback, f"chord_unlock could not be retried: {safe_repr(error)}")
            raise
    why = next(filter(None, (_failure(task_id, found[task_id]) for task_id in ids)), None)
    try:
        if why is None:
            values = [_value_of(each, found) for each in members]
            try:
                followup.follow(app, task.request, callback, (values,))
            except (PublishError, TypeError) as error:
                why = f"Callback error: {safe_repr(error)}"
        if why is not None:
            logger.error("chord %s fails: %s", group_id, why, extra={"event": "join-failed"})
            _fail(app, group_id, callback, why)
    except _AWAY as error:
        task.retry(exc=error, countdown=pause, max_retries=max_retries)


def _ids(members: list[Any]) -> Iterator[str]:
    for each in members:
        if isinstance(each, ResultSet):
            yield from _ids(each.results)
        else:
            yield each.id


def _ended(meta: Any) -> bool:
    return isinstance(meta, DamagedResult) or (meta is not None and meta["status"] in states.READY_STATES)


def _failure(task_id: str, meta: Any) -> str | None:
    """Return why this member makes the body fail; None if it succeeded."""
    if isinstance(meta, DamagedResult):
        return str(meta)
    if meta["status"] == states.SUCCESS:
        return None
    return f"Dependency {task_id} raised {safe_repr(exception_of(meta))}"


def _value_of(member: Any, found: Mapping[str, Any]) -> Any:
    if isinstance(member, ResultSet):
        return [_value_of(each, found) for each in member.results]
    return found[member.id]["result"]


def _fail(app: App, group_id: str, callback: Mapping[str, Any], why: str) -> None:
    """Store the failure of a chord's body and all calls after it, and call its errbacks."""
    try:
        envelopes, ended = followup.chord_failed(app, signature(callback, app=app), why)
    except _AWAY:
        raise
    except QWorkerError as error:
        logger.error(
            "the failure of chord %s cannot be reported: %s",
            group_id,
            error,
            extra={"event": "join-failed"},
        )
        return
    if envelopes:
        sender(app).push(envelopes)
    app.backend.store_rows([row for row, _ in ended])
    parts = [Part(*part) for _, fields in ended for part in fields]
    if parts:
        app.backend.joins.add(parts)
