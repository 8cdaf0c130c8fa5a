"""Outgoing: a message on its way to RabbitMQ, and where it goes first.

Comes from:  ``sender.py``, ``republishing.py``, ``dead_letters.py``, ``revocations.py``.
Goes to:     ``publisher.py``.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from qworker.errors import PublishError
from qworker.transports.amqp.codec import content_header, largest_header
from qworker.transports.amqp.delays import LONGEST, Delay, delay
from qworker.transports.lease import Envelope
from qworker.transports.own_headers import DUE

LARGE = 2600
"""Characters of headers from which they are measured: fewer fit into a frame of any server."""
ROOM = 1024
"""Bytes of a header that publishers leave free for what workers have to note there."""


class Outgoing(NamedTuple):
    """A message to be sent to *queue* (its name in the server). delay: its queue of delays, if any. header:
    for which header() is called, if need be, with the milliseconds until it is due (None: no delay). large:
    whether it may be too large."""

    queue: str
    header: bytes | Callable[[int | None], bytes]
    body: bytes
    delay: Delay | None = None
    large: bool = False


def outgoing(envelope: Envelope, message_id: str, prefix: str, now: float) -> Outgoing:
    """*envelope* as it is to be sent at epoch second *now*, to a queue whose name in the server begins with
    *prefix*. TypeError or ValueError for what is no message."""
    queue, headers, properties, body, priority, due, _ = envelope
    if type(body) is not bytes:
        raise TypeError(f"a body of type {type(body).__name__}: AMQP supports bytes only")
    more = None if due is None or due <= now else {DUE: float(due)}

    def header(expiration: int | None) -> bytes:
        return content_header(headers, properties, len(body), message_id, priority, more, expiration)

    large = len(headers) > LARGE
    if properties is None and not more:  # then header() cannot fail: it may wait until it is wanted
        return Outgoing(prefix + queue, header, body, None, large)
    return address(prefix + queue, due if more else None, now, header, body)._replace(large=large)


def address(
    target: str, due: float | None, now: float, header: Callable[[int | None], bytes], body: bytes
) -> Outgoing:
    """A message to *target*, by way of a queue of delays if it is due later. header: makes it for an
    expiration."""
    found = None if due is None else delay(target, due, now)
    if found is None:
        return Outgoing(target, header(None), body)
    return Outgoing(found.queue, header, body, found)


def too_large(messages: Sequence[Outgoing], frame_max: int) -> PublishError | None:
    """What to say of *messages* if the server would never take one of them; None when it would."""
    most = largest_header(frame_max) - ROOM
    for _, header, _, _, large in messages:
        if large and (size := len(header if isinstance(header, bytes) else header(LONGEST))) > most:
            return PublishError(
                f"the headers of a message have {size} bytes, RabbitMQ takes {most}: nothing was published. "
                "Put what is large into the arguments"
            )
    return None
