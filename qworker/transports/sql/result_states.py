"""The rule by which results are replaced, in SQL.

Comes from:  ``states.py``.
Goes to:     the statements that store results, of servers and in the embedded broker's file.
Thread:      any; constants.

A module of its own, because workers with the embedded broker import it without SQLAlchemy and drivers.
"""

from __future__ import annotations

from qworker import states

FINAL, _UNREADY = (
    "({})".format(", ".join(f"'{state}'" for state in sorted(group)))
    for group in (states.READY_STATES, states.UNREADY_STATES)
)
MAY_REPLACE = (
    f"{{old}} IS NULL OR ({{new}} IN {FINAL} AND {{old}} <> 'SUCCESS')"
    f" OR ({{old}} NOT IN {FINAL} AND ({{new}} <> 'STARTED' OR {{old}} IN {_UNREADY}))"
)
"""The rule of states.may_replace() in SQL, for format(): the expressions of the old and the new state."""
