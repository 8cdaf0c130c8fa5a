"""Outcome: how a run ended, or why there was none. The same value is passed from the child to the settlement.

Comes from:  execution (the result of the task's code), the pool (deaths and limits), Mediator and Intake
             (tasks that must not run).
Goes to:     ``components/ending/outcomes.py``, whose table lists the consequences of each kind.
Thread:      any. All fields are plain values, so that an outcome can be sent between processes.
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
"""Another call continues under its id."""
REJECTED = "rejected"
REQUEUED = "requeued"
"""The task raised ``Reject(requeue=True)``, or a call after it could not be sent."""
INVALID = "invalid"
"""The child could not decode the message."""
INTERRUPTED = "interrupted"
"""The shutdown interrupted the run, or the process was killed because of another task."""
TERMINATED = "terminated"
"""The run was ended by a revocation."""
TIME_LIMIT = "time limit"
"""The process was killed because the hard time limit had passed."""
LOST = "lost"
"""The process died."""
UNSTARTED = "unstarted"
"""The pool returns the request; the run had not begun."""
LEASE_EXPIRED = "lapsed"
"""The lease expired before the run began: another worker has it."""
REVOKED = "revoked"
EXPIRED = "expired"
POISONED = "poisoned"
"""Too many processes or workers died while they ran it."""
COPY = "copy"
"""A signed message that this worker has, or had, already."""
UNKNOWN = "unknown"
"""The task is not registered here, after all the retries."""
UNREADABLE = "unreadable"
"""The message is invalid."""


Fields = tuple[tuple[Any, ...], ...]
"""The fields of some Parts. Plain values, because they are sent through a socket."""
Followed = tuple[ResultRow, Fields]
"""A call that will never run: its result, and the fields of its Parts. Plain values, because they are sent
through a socket."""


class Outcome(NamedTuple):
    """kind: one of the constants above.

    runtime: seconds; None when the run was cut off. text: repr of the result or exception, or a description
    of the end. row: the result for the worker to store before the ack; None when there is none. follow: the
    calls after it that end with it. parts: of chords in Celery's format. stored: the row is already in the
    result store. told: a child has reported the end to the calls in the message of a request that had ended
    before.
    """

    kind: str
    runtime: float | None = None
    text: str = ""
    traceback: str | None = None
    row: ResultRow | None = None
    follow: tuple[Followed, ...] = ()
    parts: Fields = ()
    stored: bool = False
    told: bool = False


NOT_STARTED = Outcome(UNSTARTED)
