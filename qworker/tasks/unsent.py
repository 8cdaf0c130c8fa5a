"""Unsent: what becomes of a run when a call that comes of its end cannot be sent for now.

Comes from:  ``execution.py``, ``next_attempt.py``, ``replacement.py``, which send such calls.
Goes to:     back: the message is put back as after ``Reject(requeue=True)``, and the next run sends the same.
Thread:      whichever runs the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    from qworker.context import Context
    from qworker.tasks.task import Task


def is_away(error: BaseException) -> bool:
    """Whether *error* says that the broker or the result store is away, or refuses us: it may be there again
    later."""
    if isinstance(error, ConfigurationError):
        return error.setting in ("broker_url", "result_backend")
    return isinstance(error, TransportError | BackendError) and not isinstance(error, DamagedResult)


def can_go_back(task: Task[..., Any], context: Context) -> bool:
    """Whether there is a message still: of a task that is acked late, and was not called eagerly."""
    return bool(task.acks_late) and not context.is_eager


def reason(error: BaseException) -> str:
    """What is said of a run whose calls cannot be sent because of *error*."""
    return f"what comes after it cannot be sent: {storable(str(error))}"


@contextmanager
def put_back_if_unsent(task: Task[..., Any], context: Context) -> Iterator[None]:
    """Within this a call is sent that ends the run. Raises Reject, with which the message is put back, when
    that cannot be done for now; and any error as it is when there is no message any more."""
    try:
        yield
    except QWorkerError as error:
        if not is_away(error) or not can_go_back(task, context):
            raise
        raise Reject(reason(error), requeue=True) from error
