"""WakeupPipe: how a thread that sleeps in poll() is woken, by other threads and by signal handlers.

Comes from:  any thread, and signal handlers (wake).
Goes to:     the one thread that sleeps: in sleep(), or in a poll() of its own, beside the files it waits for.
Thread:      the one that sleeps, but for wake().
"""

from __future__ import annotations

import math
import os
import select


class _Pipe:
    """Its files are closed when nobody holds it any more: a call that comes late must not write into a file
    that has got the same number since."""

    ends: tuple[int, ...] = ()
    """None yet, where an interrupt came before they were made."""

    def __init__(self) -> None:
        self.ends = self.reader, self.writer = os.pipe()
        for end in self.ends:
            os.set_blocking(end, False)

    def __del__(self) -> None:
        for end in self.ends:
            os.close(end)


class WakeupPipe:
    """Closed at first: then wake() does nothing, and a sleep lasts as long as it was asked for."""

    def __init__(self) -> None:
        self._pipe: _Pipe | None = None

    def open(self) -> None:
        """Safe to call twice."""
        if self._pipe is None:
            self._pipe = _Pipe()

    def close(self) -> None:
        """Safe to call twice; in a forked child, too."""
        self._pipe = None

    def fileno(self) -> int:
        """What can be read after wake(), until clear(); -1 while this is closed."""
        pipe = self._pipe
        return -1 if pipe is None else pipe.reader

    def wake(self, word: bytes = b"!") -> None:
        """End a sleep early, or the next one. Any thread; safe in a signal handler."""
        pipe = self._pipe
        if pipe is not None:
            try:
                os.write(pipe.writer, word)
            except BlockingIOError:
                pass  # full: it is awake

    def clear(self) -> bytes:
        """Take in what wake() has said since the last time; b"" when it was not called."""
        pipe = self._pipe
        if pipe is None:
            return b""
        try:
            return os.read(pipe.reader, 65536)
        except BlockingIOError:
            return b""

    def sleep(self, seconds: float, *files: int) -> tuple[bytes, set[int]]:
        """Sleep until one of *files* (-1: none) can be read, wake() is called or so many seconds have passed.

        Returns what wake() has said, and those of *files* that can be read.
        """
        ready = select.poll()
        for file in (self.fileno(), *files):
            if file >= 0:
                ready.register(file, select.POLLIN)
        # Rounded up: poll() counts whole milliseconds, and what is due in 0.4 ms must not be waited for with
        # 0.
        found = {file for file, _ in ready.poll(math.ceil(max(0.0, seconds) * 1000))}
        words = self.clear() if self.fileno() in found else b""
        return words, found
