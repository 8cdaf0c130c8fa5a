"""Unsent: ends a run whose following calls cannot be sent now.

Comes from:  ``execution.py``, ``next_attempt.py``, ``replacement.py``, which send such calls.
Goes to:     the broker: the message is put back as after ``Reject(requeue=True)``, and the next run sends the
             same calls.
Thread:      the one that runs the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qworker.contracts import Task
from qworker.errors import (
    BackendError,
    ConfigurationError,
    DamagedResult,
    QWorkerError,
    Reject,
    TransportError,
)
from qworker.safe_repr import storable

if TYPE_CHECKING:
    from qworker.message.context import Context


def is_away(error: BaseException) -> bool:
    """Return whether *error* may be temporary: the broker or the result store is unavailable or refuses
    us."""
    if isinstance(error, ConfigurationError):
        return error.setting in ("broker_url", "result_backend")
    return isinstance(error, TransportError | BackendError) and not isinstance(error, DamagedResult)


def can_go_back(task: Task, context: Context) -> bool:
    """Return whether the message still exists: the task is acked late, and was not called eagerly."""
    return bool(task.acks_late) and not context.is_eager


def reason(error: BaseException) -> str:
    """Return the text for a run whose calls cannot be sent because of *error*."""
    return f"a call after it cannot be sent: {storable(str(error))}"


@contextmanager
def put_back_if_unsent(task: Task, context: Context) -> Iterator[None]:
    """Context for sending a call that ends the run. If it cannot be sent now, raises Reject, which puts the
    message back. Errors are unchanged if the message no longer exists."""
    try:
        yield
    except QWorkerError as error:
        if not is_away(error) or not can_go_back(task, context):
            raise
        raise Reject(reason(error), requeue=True) from error
