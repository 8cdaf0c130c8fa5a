"""Waker: how the listener sleeps until there is news, its store is woken, or time is up.

Comes from:  the holders' wait(), with the files by which their brokers tell of news.
Goes to:     a pipe of this process, beside those files.
Thread:      the listener's, but for wake().
"""

from __future__ import annotations

import math
import os
import select


class _Pipe:
    """Its files are closed when nobody holds it any more: a call that comes late must not write into a file
    that has got the same number since."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)

    def __del__(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


class Waker:
    """A pipe that ends a sleep(). Closed at first."""

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
        """What can be read after wake(), until hush(); -1 while this is closed."""
        return -1 if self._pipe is None else self._pipe.reader

    def wake(self, word: bytes = b"!") -> None:
        """End a sleep() early. Any thread; safe in a signal handler."""
        pipe = self._pipe
        if pipe is not None:
            try:
                os.write(pipe.writer, word)
            except BlockingIOError:
                pass  # full: it is awake

    def hush(self) -> bytes:
        """Take in what wake() has said since the last time; b"" when it was not called."""
        try:
            return os.read(self.fileno(), 65536)
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
        words = self.hush() if self.fileno() in found else b""
        return words, found
