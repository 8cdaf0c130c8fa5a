"""Reading: what an opened spool file says, a large body only when it is asked for.

Comes from:  ``claiming``, under the lock; ``jobs``, in the process that runs the job.
Goes to:     pairs and body.
Thread:      any; functions.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from qworker.spooler.packet import HEADER, LARGEST, Packet, decode

HEAD_BYTES = HEADER + LARGEST
"""No packet is longer; what follows is body."""


class Head(NamedTuple):
    """pairs. start: byte at which the body begins. body: all of it; None when it was not read."""

    pairs: dict[bytes, bytes]
    start: int
    body: bytes | None


def read_head(file: int, size: int) -> Head:
    """What the file of *size* bytes begins with. InvalidPacket when that is no packet."""
    image = os.pread(file, min(size, HEAD_BYTES), 0)
    pairs, body = decode(image)
    return Head(pairs, len(image) - len(body), body if len(image) >= size else None)


def read_body(file: int, start: int) -> bytes:
    """The file from byte *start* to its end."""
    parts: list[bytes] = []
    while part := os.pread(file, 1 << 24, start):  # a system reads 2 GB at a time
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def read_whole(file: int) -> Packet:
    """All of the file. InvalidPacket when it is none."""
    head = read_head(file, os.fstat(file).st_size)
    return Packet(head.pairs, read_body(file, head.start) if head.body is None else head.body)
