"""Outgoing: a message on its way to RabbitMQ, and where it goes first.

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
"""Characters of headers from which they are measured: fewer fit into a frame of any server."""
ROOM = 4096
"""Bytes of a header that publishers leave free for what workers have to note there, and the server of each
queue in which a message waits."""


class Outgoing(NamedTuple):
    """A message to be sent to *queue* (its name in the server). header: for which header() is called, if need
    be. due: the epoch second until which it waits on its way; None: it does not. large: whether it may be too
    large."""

    queue: str
    header: bytes | Callable[[], bytes]
    body: bytes
    due: float | None = None
    large: bool = False


def outgoing(envelope: Envelope, message_id: str, prefix: str, now: float) -> Outgoing:
    """*envelope* as it is to be sent at epoch second *now*, to a queue whose name in the server begins with
    *prefix*. TypeError or ValueError for what is no message."""
    queue, headers, properties, body, priority, due, _ = envelope
    if type(body) is not bytes:
        raise TypeError(f"a body of type {type(body).__name__}: AMQP supports bytes only")
    large = len(headers) > LARGE
    if due is None or due <= now:
        if properties is None:  # then the header cannot fail: it may wait until it is wanted
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
    """The headers of a message that waits for epoch second *due*: what it needs when *queue* is gone by
    then."""
    return {DUE: float(due), QUEUE: queue}


def too_large(messages: Sequence[Outgoing], frame_max: int) -> PublishError | None:
    """What to say of *messages* if the server would never take one of them; None when it would."""
    most = largest_header(frame_max) - ROOM
    for _, header, _, _, large in messages:
        if large and (size := len(header if isinstance(header, bytes) else header())) > most:
            return PublishError(
                f"the headers of a message have {size} bytes, RabbitMQ takes {most}: nothing was published. "
                "Put what is large into the arguments"
            )
    return None
