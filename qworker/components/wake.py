"""Wake: how a thread that rests in poll() is woken, by other threads and by signal handlers.

Comes from:  any thread, and signal handlers (ring).
Goes to:     the one thread that polls it (hush).
Thread:      as said. The pipe lives as long as the object, so that a late ring never hits a file that is not
             ours.
"""

from __future__ import annotations

import os
import weakref


class Wake:
    """Readable from ring() until hush()."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self._read, self._write)

    def fileno(self) -> int:
        return self._read

    def ring(self) -> None:
        """Wake whoever polls. Any thread; safe in a signal handler."""
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            pass  # it is full of rings already

    def hush(self) -> None:
        """Take in all rings."""
        try:
            os.read(self._read, 65536)
        except BlockingIOError:
            pass


def _close(read: int, write: int) -> None:
    os.close(read)
    os.close(write)
