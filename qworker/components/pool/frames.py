"""Frames: the protocol between the parent and a child of the process pool.

Comes from:  ProcessPool (jobs) and the child's loop (outcomes).
Goes to:     the socket between them.
Thread:      pure functions, and one buffer that belongs to the reader of the socket.

A frame is a length and a marshalled value: both ends are the same interpreter, and marshal is the fastest way
to transfer bytes, text and numbers. Message bodies pass through unchanged.

A pipe contains *tokens*, one for each job in order. A child takes a job's token before it starts the job. The
parent also holds the read end, and recalls jobs that have not started by taking their tokens. The kernel
delivers each token once, so a job is either started or recalled, even if the child is killed in between.

A job contains the time until which the worker's lease holds. A child that reads a job after that time reports
that it has not started it.

A second pipe contains *orders*, the async jobs to be cancelled. It is read even while a sync task keeps the
child from reading its socket.
"""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterator
from typing import Any

RECEIVE_BYTES = 65536
"""Bytes per read from a socket. malloc serves this size without a system call."""
LENGTH = struct.Struct("=I")
MOST_FRAME = 2**31
"""In bytes: marshal cannot write a larger value."""
TOKEN = struct.Struct("=Q")
NO_FRAMES = (ValueError, EOFError, TypeError)

Failing = tuple[str, str, str, dict[str, Any], bool, bool]
Job = tuple[int, int, str, int, int, bool, str, str | None, Failing | None, float, bytes]
"""``(sequence, tag, queue, priority, deliveries, redelivered, headers, properties, failing, starts_before,
body)``

failing: from Failing.as_plain(); None for a job that runs. starts_before: see Request."""

UP, STARTED, OUTCOME = 0, 1, 2
"""Messages from a child: ``(UP,)``, ``(STARTED, sequence, row)``, ``(OUTCOME, sequence, outcome,
retire)``."""


def pack(value: Any) -> bytes:
    """Return *value* (of plain types) as a frame."""
    data = marshal.dumps(value)
    return LENGTH.pack(len(data)) + data


def pack_tokens(sequences: list[int]) -> bytes:
    return struct.pack(f"={len(sequences)}Q", *sequences)


def take_tokens(pipe: int) -> list[int]:
    """Take and return all tokens left in *pipe*; [] if there are none."""
    try:
        data = os.read(pipe, 65536)
    except BlockingIOError:
        return []
    return [sequence for (sequence,) in TOKEN.iter_unpack(data)]


class FrameBuffer:
    """Reassembles frames from the data of a socket."""

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = LENGTH.size

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add *data* and yield the complete frames. Raises one of NO_FRAMES for invalid data, after which the
        buffer cannot be used."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return  # the parts of a large frame are joined once, after the last one
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        start, end = 0, len(data)
        self._need = LENGTH.size
        while end - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, start)
            if length > MOST_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            if end - start - LENGTH.size < length:
                self._need = LENGTH.size + length
                break
            yield marshal.loads(memoryview(data)[start + LENGTH.size : start + LENGTH.size + length])
            start += LENGTH.size + length
        self._parts = [data[start:]]
        self._have = end - start
