"""Outcome: how a run ended, or why there was none. It is the same value from the child to the settlement.

Comes from:  execution (what the task's code did), the pool (deaths and limits), Mediator and Intake (what is
             not to run).
Goes to:     ``components/ending/outcomes.py``, where a table says what follows from each kind.
Thread:      any. All fields are plain values, so that an outcome can cross a process.
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
"""Another call goes on under its id."""
REJECTED = "rejected"
REQUEUED = "requeued"
"""The task raised ``Reject(requeue=True)``, or what comes after it could not be sent."""
INVALID = "invalid"
"""The child could not decode the message."""
INTERRUPTED = "interrupted"
"""The shutdown cut the run short, or the process was killed for the sake of another task."""
TERMINATED = "terminated"
"""The run was ended by a revocation."""
TIME_LIMIT = "time limit"
"""The process was killed, since the hard time limit had passed."""
LOST = "lost"
"""The process died."""
UNSTARTED = "unstarted"
"""The pool gives the request back: the run had not begun."""
LAPSED = "lapsed"
"""The lease was lost before the run had begun: another worker has it."""
REVOKED = "revoked"
EXPIRED = "expired"
POISONED = "poisoned"
"""Too many processes or workers died while they ran it."""
COPY = "copy"
"""A signed message that this worker has, or had, already."""
UNKNOWN = "unknown"
"""Nobody here knows the task, after all the pauses for it."""
UNREADABLE = "unreadable"
"""No request can be made of the message."""


Fields = tuple[tuple[Any, ...], ...]
"""Of some Parts. Plain values, since they cross a socket."""
Followed = tuple[ResultRow, Fields]
"""A call that will never run: its result, and the fields of its Parts. Plain values, since they cross a
socket."""


class Outcome(NamedTuple):
    """kind: one of the constants above.

    runtime: seconds; None when the run did not come to an end of its own. text: repr of the result or of the
    exception, or in words how it ended. row: the result for the worker to store before the ack; None when the
    run has brought none. follow: what ends along with it, the calls that would have come after it. parts: of
    chords in Celery's layout. stored: the row is in the result store already. told: a child has told the
    calls in the message of a request that had ended before.
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
