"""The states of a task, which of them are final, and which may replace which.

Comes from:  nothing.
Goes to:     backends (compare-and-set), results, the worker's outcomes.
Thread:      any; constants and pure functions.
"""

from __future__ import annotations

PENDING = "PENDING"  #: nothing is known of it
RECEIVED = "RECEIVED"  #: a worker has it
STARTED = "STARTED"  #: it runs (stored with ``task_track_started``)
SUCCESS = "SUCCESS"  #: it has returned a value
FAILURE = "FAILURE"  #: it has failed for good
REVOKED = "REVOKED"  #: it was called off, or has expired
REJECTED = "REJECTED"  #: refused by its worker
RETRY = "RETRY"  #: it will run again
IGNORED = "IGNORED"  #: nobody keeps how it ends; never stored

READY_STATES = frozenset({SUCCESS, FAILURE, REVOKED})  #: it has ended
UNREADY_STATES = frozenset({PENDING, RECEIVED, STARTED, REJECTED, RETRY})  #: it has not
EXCEPTION_STATES = frozenset({RETRY, FAILURE, REVOKED})  #: the result is an exception
PROPAGATE_STATES = frozenset({FAILURE, REVOKED})  #: ``get()`` raises it
ALL_STATES = READY_STATES | UNREADY_STATES  #: all that may be stored but for states of your own

#: most to least telling; None stands for every custom state
PRECEDENCE = (SUCCESS, FAILURE, None, REVOKED, STARTED, RECEIVED, REJECTED, RETRY, PENDING)
_RANK = {state: rank for rank, state in enumerate(PRECEDENCE)}


def precedence(state: str) -> int:
    """Rank of `state`: 0 is the most telling (SUCCESS); custom states rank between FAILURE and REVOKED."""
    return _RANK.get(state, _RANK[None])


def may_replace(old: str, new: str) -> bool:
    """Whether a stored `old` may be overwritten by `new`.

    A final state is never left for one that is not; SUCCESS stands for ever; FAILURE and REVOKED give way
    to another final state (a redelivered task that succeeds after all).
    """
    if old == SUCCESS:
        return False
    return old not in READY_STATES or new in READY_STATES
