"""What a message looks like that goes back changed, or to the dead letters or the failed tasks.

Comes from:  the consumer, with a settlement.
Goes to:     the sender.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable

from qworker.transports.kombu.holdings import Held
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.kombu.server import DEAD, FAILED
from qworker.transports.lease import DeadLetter, Release
from qworker.transports.own_headers import DELIVERIES, DIED, DUE, QUEUE, REASON, REDELIVERED, REQUEUED


def released(held: Held, release: Release) -> Held:
    """*held* as it goes on after *release*."""
    own, old = dict(held.own), held.leased
    if release.counted:
        own[DELIVERIES] = old.deliveries + 1
    if release.requeued:
        own[REQUEUED] = old.requeued + 1
    if release.counted or release.redelivered or old.redelivered:
        own[REDELIVERED] = True
    own.pop(DUE, None)
    after = old._replace(
        due=release.due,
        deliveries=own.get(DELIVERIES, 0),
        requeued=own.get(REQUEUED, 0),
        redelivered=REDELIVERED in own,
    )
    return Held(held.message, after, own, held.message_id)


def dead_lettered(held: Held, dead_letter: DeadLetter, now: float, make: Callable[..., Outgoing]) -> Outgoing:
    """*held* as a dead letter, or as a failed task. make: ``messages.of_leased`` or ``messages.packed``."""
    own = {
        QUEUE: held.leased.queue,
        REASON: dead_letter.reason,
        DIED: now,
        DELIVERIES: held.leased.deliveries + dead_letter.counted,
    }
    return make(held.leased, own, held.message_id, FAILED if dead_letter.failed else DEAD)
