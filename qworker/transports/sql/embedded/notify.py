"""Notify: named pipes by which a process tells others on the machine that something has changed.

Comes from:  a process that has written to the database, after its commit.
Goes to:     each process that waits: it has a NotificationPipe in the directory beside the database.
Thread:      a NotificationPipe belongs to one thread at a time; a Notifier to any.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

MESSAGE, REVOKED = b"!", b"r"
_NO_PIPES_HERE = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class NotificationPipe:
    """A named pipe to which others write a byte when something has changed. Owner: one thread at a time.

    kind: 'message' (notified by publishers) or 'result' (notified by code that stores results). Where named
    pipes are not supported, fileno() is -1 and wait() a sleep of at most 50 ms.
    """

    _fd = -1

    def __init__(self, directory: Path, kind: str) -> None:
        self._path = directory / f"{kind}.{os.getpid()}.{os.urandom(4).hex()}"
        self._pid = os.getpid()
        # Created under another name and opened first: a notifier must never see a pipe without a reader.
        hidden = directory / f".{self._path.name}"
        if _make_pipe(hidden):
            # Also its own writer, so that it never reads as hung up when the last notifier leaves.
            self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.rename(hidden, self._path)

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> bytes:
        """Empty the pipe; return the bytes in it, b"" if there were none."""
        if self._fd < 0:
            return b""
        try:
            return os.read(self._fd, 65536)
        except OSError:
            return b""

    def wait(self, timeout: float) -> bool:
        """Wait up to *timeout* seconds for a notification; True if one came, or may have come."""
        if self._fd < 0:
            time.sleep(min(timeout, 0.05))
            return True
        ready = select.poll()
        ready.register(self._fd, select.POLLIN)
        return bool(ready.poll(max(0.0, timeout * 1000)) and self.clear())

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if self._pid == os.getpid():
                self._path.unlink(missing_ok=True)

    def __del__(self) -> None:
        """The owner may have been interrupted before closing it."""
        with suppress(OSError):
            self.close()


def _make_pipe(path: Path) -> bool:
    if not hasattr(os, "mkfifo"):
        return False
    try:
        os.mkfifo(path, 0o600)
    except OSError as error:
        if error.errno not in _NO_PIPES_HERE:
            raise
        return False
    return True


class Notifier:
    """Writes to all pipes of one kind in *directory*. Any thread.

    Pipes are kept open; the directory is read again only when its time stamp has changed.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._place = str(directory)  # a Path would be turned into text at each notification
        self._prefix = f"{kind}."
        self._lock = threading.Lock()
        self._pipes: dict[str, int] = {}  # under _lock
        self._seen = -1  # under _lock
        _notifiers.add(self)

    def notify(self, word: bytes = MESSAGE) -> None:
        """Write *word* to all pipes: one byte that names the reason. A full pipe is skipped."""
        with self._lock:
            try:
                changed = os.stat(self._place).st_mtime_ns
            except OSError:
                return
            if changed != self._seen:
                self._look(changed)
            for name, pipe in list(self._pipes.items()):
                try:
                    os.write(pipe, word)
                except BlockingIOError:
                    pass  # full: its reader has 65,536 unread notifications
                except OSError:
                    self._drop(name)

    def _look(self, changed: int) -> None:
        # A pipe made in the same tick of the clock as the last change would go unseen: look again next time.
        settled = time.time_ns() - changed > 50_000_000
        names = {name for name in os.listdir(self._directory) if name.startswith(self._prefix)}
        for name in self._pipes.keys() - names:
            self._drop(name, unlink=False)
        for name in names - self._pipes.keys():
            try:
                self._pipes[name] = os.open(
                    self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                )
            except OSError as error:
                if error.errno == errno.ENXIO:  # its reader is dead
                    (self._directory / name).unlink(missing_ok=True)
        self._seen = changed if settled else -1

    def _drop(self, name: str, unlink: bool = True) -> None:
        os.close(self._pipes.pop(name))
        if unlink:
            (self._directory / name).unlink(missing_ok=True)

    def after_fork(self) -> None:
        """In a forked child: drop the parent's pipes, which another thread may have been about to use."""
        self._lock = threading.Lock()
        self.close()

    def close(self) -> None:
        """Close the pipes; notify() finds them again. Safe to call twice."""
        with self._lock:
            for pipe in self._pipes.values():
                os.close(pipe)
            self._pipes.clear()
            self._seen = -1


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _after_fork() -> None:
    for notifier in list(_notifiers):
        notifier.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
