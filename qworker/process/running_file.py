"""Running file: which messages a process is running, written where it outlives the process.

Comes from:  pool children and the threads pool, at the start and the end of each run; for kombu's consumers,
             which do not say when they run what they were given, ``transports/as_kombu/desk.py``.
Goes to:     the running file (``Consumer.running_path``); when the worker dies, whoever takes its messages
             back reads it, and counts the death only against those that were running.
Thread:      set() of a slot by its user; begin() and end() by any.

The file has a slot for each run: the tag of its message, or 0. It is mapped into memory, so that a slot is
filled without a system call, and stands as it is when the process is killed.
"""

from __future__ import annotations

import mmap
import os
import struct

SLOT = struct.Struct("=q")
"""One slot: the tag of the message that a child runs, 0 for none."""
SLOTS = 128
"""How many runs of one process the file can hold, unless more are asked for."""


class RunningFile:
    """path: of the file; None: nothing is kept. index: which process of the pool this is. slots: how many
    runs of one process it can hold."""

    def __init__(self, path: str | None, index: int = 0, slots: int = SLOTS) -> None:
        self._first = index * slots
        self._file = _open(path, self._first, slots) if path else None
        self._free = list(range(1, slots))  # any thread: pop and append are atomic

    def set(self, slot: int, tag: int) -> None:
        """Write that *slot* runs *tag*; 0: nothing. Slot 0 is the main thread's."""
        if self._file is not None:
            SLOT.pack_into(self._file, (self._first + slot) * SLOT.size, tag)

    def begin(self, tag: int) -> int:
        """Write *tag* into a slot of its own, and return that for end(); -1 when none is free."""
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
            mapped[start:end] = bytes(end - start)  # what a predecessor left that died
            return mapped
        finally:
            os.close(file)
    except OSError:
        return None  # a full disk: a death of the whole worker will not count the runs that it cuts short
