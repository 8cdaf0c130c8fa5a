"""Frames: what the parent and a child of the process pool say to each other.

Comes from:  ProcessPool (jobs) and the child's loop (outcomes).
Goes to:     the socket between them.
Thread:      pure functions and one buffer that belongs to whoever reads the socket.

A frame is a length and a marshalled value: both ends are the same interpreter, and marshal is the quickest
way to carry bytes, text and numbers. Message bodies pass through as they came from the broker.

Beside the socket runs a pipe of *tokens*, one for each job in order. A child takes a job's token before it
starts the job. The parent holds the reading end too, and recalls what has not started by taking the tokens
back: the kernel hands each token out once, so a job is started or recalled, never both, also when the child
is killed in between.

A job says until when it is surely ours. However long a frame was on its way, a child that finds a job too
late says that it has not started it.

Through a third pipe, of *orders*, the parent names async jobs that are to be cancelled. It is heard also
while a sync task keeps the child from its socket.
"""

from __future__ import annotations

import marshal
import os
import struct
from collections.abc import Iterator
from typing import Any

RECEIVE_BYTES = 65536
"""Asked of a socket at a time: what malloc still serves without a system call of its own."""
LENGTH = struct.Struct("=I")
MOST_FRAME = 2**31
"""Bytes: marshal writes no value that is larger."""
TOKEN = struct.Struct("=Q")
NO_FRAMES = (ValueError, EOFError, TypeError)

Failing = tuple[str, str, str, dict[str, Any], bool]
Job = tuple[int, int, str, int, int, bool, str, str | None, Failing | None, float, bytes]
"""``(sequence, tag, queue, priority, deliveries, redelivered, headers, properties, failing, starts_before,
body)``

failing: what Failing.told() returns; None for a job that is to run. starts_before: see Request."""

UP, STARTED, OUTCOME = 0, 1, 2
"""What a child says: ``(UP,)``, ``(STARTED, sequence, row)``, ``(OUTCOME, sequence, outcome, retire)``."""


def pack(value: Any) -> bytes:
    """Return *value* (of plain types) as one frame."""
    data = marshal.dumps(value)
    return LENGTH.pack(len(data)) + data


def pack_tokens(sequences: list[int]) -> bytes:
    return struct.pack(f"={len(sequences)}Q", *sequences)


def take_tokens(pipe: int) -> list[int]:
    """Take all tokens that are left in *pipe*; [] when there are none."""
    try:
        data = os.read(pipe, 65536)
    except BlockingIOError:
        return []
    return [sequence for (sequence,) in TOKEN.iter_unpack(data)]


class FrameBuffer:
    """Puts frames together from what a socket yields."""

    __slots__ = ("_have", "_need", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have = 0
        self._need = LENGTH.size

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take *data* in and yield the frames that are complete. Raises one of NO_FRAMES when that is not
        what pack() writes; then nothing more can be read."""
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return  # a large frame comes in many parts: they are joined once, when all are there
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
