"""Marks: which messages a process is running, written where they outlive it.

Comes from:  pool children and the threads pool, at the start and the end of each run.
Goes to:     the running file (``Consumer.running_path``); when the worker dies, whoever takes its messages
             back reads it, and counts the death only against those that were running.
Thread:      set() of a slot by its user; begin() and end() by any.

The file is mapped into memory, so that a mark costs no system call and needs no farewell.
"""

from __future__ import annotations

import mmap
import os

from qworker.transports.lease import MARK

SLOTS = 128
"""Of one process."""


class Marks:
    """path: of the file; None: nothing is kept. index: which process of the pool this is."""

    def __init__(self, path: str | None, index: int = 0) -> None:
        self._file = _open(path, index) if path else None
        self._first = index * SLOTS
        self._free = list(range(1, SLOTS))  # any thread: pop and append are atomic

    def set(self, slot: int, tag: int) -> None:
        """Mark *tag* as running in *slot*, 0: nothing. Slot 0 is the main thread's."""
        if self._file is not None:
            MARK.pack_into(self._file, (self._first + slot) * MARK.size, tag)

    def begin(self, tag: int) -> int:
        """Mark *tag* in a slot of its own, for end(); there are enough for all but absurd numbers of
        tasks."""
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


def _open(path: str, index: int) -> mmap.mmap | None:
    start, end = index * SLOTS * MARK.size, (index + 1) * SLOTS * MARK.size
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # the broker may not have been opened yet
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size < end:
                os.posix_fallocate(file, 0, end)
            marks = mmap.mmap(file, end)
            marks[start:end] = bytes(end - start)  # what a predecessor left that died
            return marks
        finally:
            os.close(file)
    except OSError:
        return None  # a full disk: a death of the whole worker will not count the runs that it cuts short
