"""WakeupPipe: wakes a thread that sleeps in poll(), from other threads and signal handlers.

Comes from:  any thread, and signal handlers (wake).
Goes to:     the sleeping thread, in sleep() or in its own poll().
Thread:      the sleeping one, except wake().
"""

from __future__ import annotations

import math
import os
import select


class _Pipe:
    """A pipe that is closed with the last reference, so that a late call cannot write to another file that
    reuses the descriptor."""

    ends: tuple[int, ...] = ()
    """The descriptors; () if an interrupt came before they were created."""

    def __init__(self) -> None:
        self.ends = self.reader, self.writer = os.pipe()
        for end in self.ends:
            os.set_blocking(end, False)

    def __del__(self) -> None:
        for end in self.ends:
            os.close(end)


class WakeupPipe:
    """Initially closed; while it is, wake() has no effect, and sleep() takes the full time."""

    def __init__(self) -> None:
        self._pipe: _Pipe | None = None

    def open(self) -> None:
        """Open it. Safe to call twice."""
        if self._pipe is None:
            self._pipe = _Pipe()

    def close(self) -> None:
        """Close it. Safe to call twice, and in a forked child."""
        self._pipe = None

    def fileno(self) -> int:
        """Return the descriptor that is readable from wake() to clear(); -1 while closed."""
        pipe = self._pipe
        return -1 if pipe is None else pipe.reader

    def wake(self, word: bytes = b"!") -> None:
        """End the current or next sleep early. Any thread; safe in a signal handler."""
        pipe = self._pipe
        if pipe is not None:
            try:
                os.write(pipe.writer, word)
            except BlockingIOError:
                pass  # full: the thread is awake

    def clear(self) -> bytes:
        """Return the words passed to wake() since the last call; b"" if there are none."""
        pipe = self._pipe
        if pipe is None:
            return b""
        try:
            return os.read(pipe.reader, 65536)
        except BlockingIOError:
            return b""

    def sleep(self, seconds: float, *files: int) -> tuple[bytes, set[int]]:
        """Sleep until one of *files* (-1: none) is readable, wake() is called, or *seconds* have passed.

        Return the words passed to wake(), and the readable *files*.
        """
        ready = select.poll()
        for file in (self.fileno(), *files):
            if file >= 0:
                ready.register(file, select.POLLIN)
        # Rounded up, because poll() takes whole milliseconds, and 0.4 ms must not become a busy loop.
        found = {file for file, _ in ready.poll(math.ceil(max(0.0, seconds) * 1000))}
        words = self.clear() if self.fileno() in found else b""
        return words, found
