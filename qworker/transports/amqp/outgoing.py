"""Outgoing: a message to be sent to RabbitMQ, and its first destination.

Comes from:  ``broker.py``, ``consumer.py``, ``letters.py``, ``revocations.py``.
Goes to:     ``publisher.py``.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from qworker.errors import PublishError
from qworker.transports.amqp.codec import content_header, largest_header
from qworker.transports.lease import Envelope
from qworker.transports.own_headers import DUE, QUEUE

LARGE = 2600
"""Characters of headers from which their size is computed: shorter ones fit into a frame of any server."""
ROOM = 4096
"""Bytes of a header that publishers leave free for headers added by workers, and by the server for each queue
in which a message waits."""


class Outgoing(NamedTuple):
    """A message to be sent to *queue* (its name in the server). header: computed by header() on demand. due:
    the epoch second until which it waits; None: it does not. large: whether it may be too large."""

    queue: str
    header: bytes | Callable[[], bytes]
    body: bytes
    due: float | None = None
    large: bool = False


def outgoing(envelope: Envelope, message_id: str, prefix: str, now: float) -> Outgoing:
    """Return *envelope* as it is sent at epoch second *now*, to a queue whose name in the server begins with
    *prefix*. TypeError or ValueError for an invalid one."""
    queue, headers, properties, body, priority, due, _ = envelope
    if type(body) is not bytes:
        raise TypeError(f"a body of type {type(body).__name__}: AMQP supports bytes only")
    large = len(headers) > LARGE
    if due is None or due <= now:
        if properties is None:  # then the header cannot fail, and is computed on demand
            return Outgoing(
                prefix + queue,
                lambda: content_header(headers, None, len(body), message_id, priority),
                body, None, large,
            )  # fmt: skip
        return Outgoing(
            prefix + queue,
            content_header(headers, properties, len(body), message_id, priority),
            body,
            None,
            large,
        )
    header = content_header(headers, properties, len(body), message_id, priority, waiting(queue, due))
    return Outgoing(prefix + queue, header, body, due, large)


def waiting(queue: str, due: float) -> dict[str, Any]:
    """Return the headers of a message that waits for epoch second *due*, needed if *queue* is gone by
    then."""
    return {DUE: float(due), QUEUE: queue}


def too_large(messages: Sequence[Outgoing], frame_max: int) -> PublishError | None:
    """Return an error text if the server would never accept one of *messages*; None otherwise."""
    most = largest_header(frame_max) - ROOM
    for _, header, _, _, large in messages:
        if large and (size := len(header if isinstance(header, bytes) else header())) > most:
            return PublishError(
                f"the headers of a message have {size} bytes, RabbitMQ accepts {most}: nothing was "
                "published. Pass large data in the arguments"
            )
    return None
