"""Message files: messages of a broker as spool files, in a directory for each queue.

Comes from:  ``spool_broker``, with messages to send, and with files that it has claimed or reads.
Goes to:     the bytes of a file, and back.
Thread:      any; functions.

The pairs describe the file: ``qw_message``, ``qw_queue``, ``qw_priority``, and the lengths of the headers and
the properties, which precede the message's own body. The name begins with the time, so names sort in the
order in which the messages were sent, by any sender.
"""

from __future__ import annotations

import os
from itertools import count
from typing import NamedTuple
from urllib.parse import quote, unquote

from qworker.errors import InvalidPacket
from qworker.spooler.files.packet import PREFIX
from qworker.spooler.files.writing import NewJob
from qworker.transports.lease import Envelope, Leased

QUEUES = ".qw-queues"
"""The directory within a spool directory for the queues of a broker."""
AT_ONCE = 1.0
"""The due time of immediate messages: even a clock that is set back does not delay them."""
VERSION = b"1"
MOST_URGENT = 9

_counter = count(1)  # next() is atomic: no two threads get the same number


class Stamp(NamedTuple):
    """The send time of a batch of messages: microseconds, and a number in this process."""

    microseconds: int
    number: int

    def name(self, index: int) -> str:
        """Return a name for the message *index* of the batch."""
        return f"{PREFIX}qw_{self.microseconds}_{self.number}_{index}_{os.getpid()}_{os.urandom(4).hex()}"


def stamp(now: float) -> Stamp:
    """Return the stamp of a batch sent at epoch second *now*."""
    return Stamp(round(now * 1_000_000), next(_counter))


def sent_at(name: str) -> float | None:
    """Return when the message in the file *name* was sent, epoch seconds; None if the name does not contain
    that."""
    numbers = _numbers(name)
    return None if numbers is None else numbers[0] / 1e6


def tag_of(name: str, inode: int) -> int:
    """Return a tag for the message in the file *name*: older messages have smaller ones. inode: used when the
    name has no time."""
    numbers = _numbers(name)
    if numbers is None:
        return inode
    microseconds, number, index, pid = numbers
    return ((microseconds + index) * 1024 + (number * 7 + pid) % 1024) % 2**62


def _numbers(name: str) -> tuple[int, int, int, int] | None:
    parts = name.removeprefix(f"{PREFIX}qw_").split("_")
    if len(parts) != 5 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts[:4]):
        return None
    microseconds, number, index, pid = map(int, parts[:4])
    return microseconds, number, index, pid


def queue_folder(queue: str) -> str:
    """Return the name of the directory of *queue*, which cannot be a path to another place."""
    return quote(queue, safe="").replace(".", "%2E")


def queue_of(folder: str) -> str:
    """Return the queue whose directory has that name."""
    return unquote(folder)


def to_job(envelope: Envelope, name: str) -> NewJob:
    """Return the job to write for *envelope*, in the file *name*."""
    headers = envelope.headers.encode()
    properties = b"" if envelope.properties is None else envelope.properties.encode()
    urgency = min(max(envelope.priority, 0), MOST_URGENT)
    pairs: dict[str | bytes, bytes | int] = {
        b"qw_message": VERSION,
        b"qw_queue": envelope.queue.encode(),
        b"qw_priority": urgency,
        b"qw_headers": len(headers),
        b"qw_properties": -1 if envelope.properties is None else len(properties),
    }
    if envelope.expires is not None:
        pairs[b"qw_expires"] = repr(envelope.expires).encode()
    return NewJob(
        pairs,
        headers + properties + envelope.body,
        envelope.due if envelope.due is not None and envelope.due > AT_ONCE else AT_ONCE,
        # Messages without a priority are in the directory itself, which comes last.
        "" if urgency == 0 else MOST_URGENT + 1 - urgency,
        name,
    )


def from_file(
    pairs: dict[bytes, bytes],
    body: bytes,
    tag: int,
    *,
    due: float,
    deliveries: int = 0,
    requeued: int = 0,
    redelivered: bool = False,
) -> Leased:
    """Return the message in a file with these *pairs* and *body*. due: the time of the file, epoch seconds.

    InvalidPacket when it is not a message.
    """
    try:
        if pairs[b"qw_message"] != VERSION:
            raise InvalidPacket(f"its message version is {pairs[b'qw_message'][:20]!r}, not {VERSION!r}")
        first, second = int(pairs[b"qw_headers"]), int(pairs[b"qw_properties"])
        end = first + max(0, second)
        if first < 0 or end > len(body):
            raise InvalidPacket("its headers and properties are longer than the file")
        return Leased(
            tag,
            pairs[b"qw_queue"].decode(),
            int(pairs[b"qw_priority"]),
            due if due > AT_ONCE else None,
            deliveries,
            redelivered,
            requeued,
            body[:first].decode(),
            None if second < 0 else body[first:end].decode(),
            body[end:],
        )
    except KeyError as error:
        raise InvalidPacket(f"it is not a message: the pair {error} is missing") from None
    except ValueError as error:
        raise InvalidPacket(f"it is not a message: {error}") from None
