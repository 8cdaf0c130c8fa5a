"""Messages of RabbitMQ that a worker sends instead of settling them in place: changed, or to the dead
letters or the failed tasks.

Comes from:  ``consumer.py``, which acknowledges the old one once the new one is confirmed.
Goes to:     ``publisher.py``.
Thread:      the listener's.
"""

from __future__ import annotations

import logging
from typing import Any

from qworker.transports.amqp.codec import content_header, largest_header
from qworker.transports.amqp.inbox import Held
from qworker.transports.amqp.letters import as_letter
from qworker.transports.amqp.outgoing import Outgoing, waiting
from qworker.transports.amqp.queues import DEAD, FAILED
from qworker.transports.amqp.server import Server
from qworker.transports.lease import Dead, DeadLetter, Release
from qworker.transports.own_headers import DELIVERIES, DUE, REDELIVERED, REQUEUED

logger = logging.getLogger(__name__)


class Republishing:
    """frame_max: bytes, as agreed upon with the server."""

    def __init__(self, server: Server, frame_max: int) -> None:
        self._queues = server.queues
        self._clock = server.clock
        self._frame_max = frame_max

    def message(self, held: Held, order: Release | DeadLetter) -> Outgoing:
        """What is to be sent for *order*."""
        return (
            self._dead_lettered(held, order) if isinstance(order, DeadLetter) else self._released(held, order)
        )

    def _released(self, held: Held, release: Release) -> Outgoing:
        """The message of *held* as it goes back to its queue; to the dead letters if it is too large for
        that."""
        leased = held.leased
        more = {**held.own, **_counts(held, release)}
        more.pop(DUE, None)
        due = release.due if release.due is not None and release.due > self._clock.now() else None
        if due is not None:
            more |= waiting(leased.queue, due)
        elif held.expires:
            more[DUE] = self._clock.now()  # so it is another message, though none of its counts has changed
        header = content_header(
            leased.headers, leased.properties, len(leased.body), held.message_id, leased.priority, more
        )
        most = largest_header(self._frame_max)
        if (size := len(header)) > most:
            reason = (
                f"it could not go back to its queue: with what is to be noted there, "
                f"its headers have {size} bytes, and RabbitMQ takes {most}"
            )
            logger.error("message %d in %s goes to the dead letters: %s", leased.tag, leased.queue, reason)
            return self._dead_lettered(held, DeadLetter(leased.tag, reason, counted=release.counted))
        return Outgoing(self._queues.prefix + leased.queue, header, leased.body, due)

    def _dead_lettered(self, held: Held, dead_letter: DeadLetter) -> Outgoing:
        """The message of *held* as a dead letter, or as a failed task."""
        leased = held.leased
        dead = Dead(
            leased.tag, leased.queue, dead_letter.reason, self._clock.now(),
            leased.deliveries + dead_letter.counted, leased.headers, leased.properties, leased.body,
        )  # fmt: skip
        more = {name: value for name, value in held.own.items() if name != DUE}
        kind = FAILED if dead_letter.failed else DEAD
        return as_letter(kind, dead, self._queues, held.message_id, leased.priority, more, self._frame_max)


def _counts(held: Held, release: Release) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if release.counted:
        changed[DELIVERIES] = held.leased.deliveries + 1
    if release.requeued:
        changed[REQUEUED] = held.leased.requeued + 1
    if release.counted or release.redelivered or held.leased.redelivered:
        changed[REDELIVERED] = True
    return changed
