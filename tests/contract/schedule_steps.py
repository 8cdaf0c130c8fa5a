"""Common steps of the tests of schedule stores, and of the processes that they start.

Comes from:  test_schedule_stores.py.
Goes to:     the store, and its broker.
"""

from __future__ import annotations

from qworker.beat.store import EntryState, Firing, Lease, ScheduleStore
from qworker.transports.lease import Broker
from tests.support.messages import message

QUEUE = "calls"
DUE = 1_700_000_000.25


def leading(store: ScheduleStore, holder: str = "us") -> Lease:
    """Take the lease for *holder*, from any other holder."""
    lease = store.take(holder, store.look(), "about us")
    assert lease.holder == holder
    return lease


def state(number: int = 1, error: str | None = None) -> EntryState:
    return EntryState(f"seen {number}", DUE - 1, DUE, DUE + 0.5, f"task-{number}", number, error)


def firing(name: str, due: float = DUE, number: int = 1, count: int = 1) -> Firing:
    """Return a call of *count* messages."""
    envelopes = [message(f"{due} {place} of {name!a}", QUEUE) for place in range(count)]
    return Firing(name, due, f"task-{number}", envelopes, state(number))


def sent(broker: Broker) -> int:
    return broker.admin.depths([QUEUE])[0].ready
