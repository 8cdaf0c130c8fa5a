"""Outcome: how a run ended, or why there was none.

Comes from:  execution (the result of the task's code), the pool (deaths and limits), Mediator and Intake
             (tasks that must not run).
Goes to:     ``components/ending/outcomes.py``, whose table lists the consequences of each kind.
Thread:      any. The fields are plain values, so that an outcome can be sent between processes.
"""

from typing import Any, NamedTuple

from qworker.transports.lease import ResultRow

SUCCESS = "success"
RETRY = "retry"
"""The next attempt is published."""
FAILURE = "failure"
EXPECTED = "expected failure"
"""The exception is one of the task's ``throws``."""
IGNORED = "ignored"
REPLACED = "replaced"
"""Another call replaced the task, with its id."""
REJECTED = "rejected"
REQUEUED = "requeued"
"""The task raised ``Reject(requeue=True)``, or a call after it could not be sent."""
INVALID = "invalid"
"""The child could not decode the message."""
INTERRUPTED = "interrupted"
"""The run was interrupted by the shutdown, or its process was killed because of another task."""
TERMINATED = "terminated"
"""The run was ended by a revocation."""
TIME_LIMIT = "time limit"
"""The process was killed because the hard time limit had passed."""
LOST = "lost"
"""The process died."""
UNCONFIRMED = "unconfirmed"
"""The broker did not confirm the ack before the run: nobody else may have the message, or another worker."""
UNSTARTED = "unstarted"
"""The pool returned the request before its run began."""
LEASE_EXPIRED = "lease expired"
"""The lease expired before the run began; another worker has the message."""
REVOKED = "revoked"
EXPIRED = "expired"
POISONED = "poisoned"
"""Too many processes or workers died while they ran it."""
COPY = "copy"
"""A second message of a signed call, or of the body of a join."""
UNKNOWN = "unknown"
"""The task is still not registered here after its message was put back several times."""
UNREADABLE = "unreadable"
"""The message is invalid."""

FOUND_AGAIN = frozenset([REVOKED, EXPIRED, POISONED, UNKNOWN])
"""Ends without a run that any other worker would determine too."""
RUN_AGAIN = FOUND_AGAIN | {TERMINATED, TIME_LIMIT}
"""Ends after which a task may run again if they cannot be reported."""
CUT_SHORT = frozenset([LOST, UNCONFIRMED, TIME_LIMIT, INTERRUPTED, POISONED])
"""Ends that are not due to an error of the task."""

Fields = tuple[tuple[Any, ...], ...]
"""The fields of several Parts, as plain values."""
Followed = tuple[ResultRow, Fields]
"""The result of a call that will never run, and the fields of its Parts, as plain values."""


class Outcome(NamedTuple):
    """The end of a run.

    - kind: one of the constants above.
    - runtime: seconds; None if the run did not end by itself.
    - text: repr of the result or exception, or a description of the end.
    - row: the result for the worker to store before the ack; None if there is none.
    - follow: the following calls that end with it.
    - parts: of chords in Celery's format.
    - stored: the row is already in the result store.
    - reported: a child has reported the end to the calls in the message.
    """

    kind: str
    runtime: float | None = None
    text: str = ""
    traceback: str | None = None
    row: ResultRow | None = None
    follow: tuple[Followed, ...] = ()
    parts: Fields = ()
    stored: bool = False
    reported: bool = False


NOT_STARTED = Outcome(UNSTARTED)
