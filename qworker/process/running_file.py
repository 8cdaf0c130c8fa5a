"""Running file: a record of the messages that a process is running, which outlives it.

Comes from:  pool children and the threads pool, at the start and the end of each run; for kombu's consumers,
             which do not report starts, ``transports/as_kombu/shared_state.py``.
Goes to:     the running file (``Consumer.running_path``); when the worker dies, the process that reclaims its
             messages counts the death only for those that were running.
Thread:      set() of a slot by its user; begin() and end() by any.

The file has a slot for each run, with the tag of its message or 0. It is memory-mapped, so that writing a
slot takes no system call, and the data survives a kill.
"""

from __future__ import annotations

import mmap
import os
import struct

SLOT = struct.Struct("=q")
"""One slot: the tag of the running message, or 0."""
SLOTS = 128
"""Default number of concurrent runs of one process."""


class RunningFile:
    """path: of the file; None: no file. index: of the process in the pool. slots: maximum concurrent runs of
    one process."""

    def __init__(self, path: str | None, index: int = 0, slots: int = SLOTS) -> None:
        self._first = index * slots
        self._file = _open(path, self._first, slots) if path else None
        self._free = list(range(1, slots))  # any thread: pop and append are atomic

    def set(self, slot: int, tag: int) -> None:
        """Record that *slot* runs *tag*, or nothing if it is 0. Slot 0 is the main thread's."""
        if self._file is not None:
            SLOT.pack_into(self._file, (self._first + slot) * SLOT.size, tag)

    def begin(self, tag: int) -> int:
        """Record *tag* in a free slot; return the slot for end(), -1 if none is free."""
        try:
            slot = self._free.pop()
        except IndexError:
            return -1
        self.set(slot, tag)
        return slot

    def end(self, slot: int) -> None:
        if slot >= 0:
            self.set(slot, 0)
            self._free.append(slot)


def _open(path: str, first: int, slots: int) -> mmap.mmap | None:
    start, end = first * SLOT.size, (first + slots) * SLOT.size
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # the broker may not have been opened yet
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < end:
                os.posix_fallocate(file, 0, end)
            mapped = mmap.mmap(file, end)
            mapped[start:end] = bytes(end - start)  # left by a predecessor that died
            return mapped
        finally:
            os.close(file)
    except OSError:
        return None  # for example, the disk is full; then a death does not count for the running tasks
