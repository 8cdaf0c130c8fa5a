"""The states of a task, which of them are final, and which may replace which.

Comes from:  nothing.
Goes to:     backends (compare-and-set), results, the worker's outcomes.
Thread:      any; constants and pure functions.
"""

from __future__ import annotations

PENDING = "PENDING"  #: nothing is known about it
RECEIVED = "RECEIVED"  #: a worker has it
STARTED = "STARTED"  #: it is running (stored with ``task_track_started``)
SUCCESS = "SUCCESS"  #: it has returned a value
FAILURE = "FAILURE"  #: it failed and will not be retried
REVOKED = "REVOKED"  #: it was cancelled, or has expired
REJECTED = "REJECTED"  #: its worker refused it
RETRY = "RETRY"  #: it will run again
IGNORED = "IGNORED"  #: its result is not kept; never stored

READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})  #: it has ended
UNREADY_STATES = frozenset({PENDING, RECEIVED, STARTED, REJECTED, RETRY})  #: it has not ended
EXCEPTION_STATES = frozenset({RETRY, FAILURE, REVOKED})  #: the result is an exception
PROPAGATE_STATES = frozenset({FAILURE, REVOKED})  #: ``get()`` raises it
ALL_STATES = READY_STATES | UNREADY_STATES  #: all that may be stored, except custom states

#: by precedence, highest first; None means any custom state
PRECEDENCE = (SUCCESS, FAILURE, None, REVOKED, STARTED, RECEIVED, REJECTED, RETRY, PENDING)
_RANK = {state: rank for rank, state in enumerate(PRECEDENCE)}


def precedence(state: str) -> int:
    """Return the rank of `state`, 0 (SUCCESS) the highest. Custom states are between FAILURE and REVOKED."""
    return _RANK.get(state, _RANK[None])


def may_replace(old: str, new: str) -> bool:
    """Return whether `new` may overwrite a stored `old`.

    SUCCESS is never replaced. Other final states are replaced only by a final one: a redelivered task may
    succeed after all. STARTED does not replace a custom state, because the worker may store it after the
    task has already called update_state(): they are stored by different processes.
    """
    if new in READY_STATES:
        return old != SUCCESS
    return old not in READY_STATES and (new != STARTED or old in UNREADY_STATES)
