"""Notify: named pipes by which a process tells others on the machine that something has changed.

Comes from:  a process that has written to the database, after its commit.
Goes to:     each process that waits: it has a NotificationPipe in the directory beside the database. For new
             messages, one of those that wait for their queue: they share a pipe, see QueuePipes.
Thread:      NotificationPipe and QueuePipes belong to one thread at a time; a Notifier to any.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MESSAGE, REVOKED = b"!", b"r"
LOCK_SECONDS = 1.0
"""How long to wait for another process that removes pipes, which takes microseconds unless it is frozen."""
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


class QueuePipes:
    """The pipes of the queues for whose messages a consumer waits. Other consumers of a queue read the same
    pipe: a byte in it is for whoever reads it first. Owner: one thread at a time.

    The kernel wakes one waiting process, and none that is stopped; where there is no epoll, all of them, and
    one finds the byte. A byte stays until a consumer reads it.
    """

    _pipes: dict[str, int] = {}

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pid = os.getpid()
        self._pipes = {}  # by queue

    def listen(self, queues: Collection[str]) -> None:
        """Open the pipes of *queues*, in addition to those that are open."""
        for queue in queues:
            if queue not in self._pipes:
                with self._locked(fcntl.LOCK_SH, LOCK_SECONDS):
                    pipe = _open_pipe(self._directory / _pipe_of(queue))
                if pipe is not None:
                    self._pipes[queue] = pipe

    def wait(self, seconds: float, *files: int) -> set[int]:
        """Wait until there is a byte in a pipe, or one of *files* is readable. Return which are readable."""
        if not hasattr(select, "epoll"):
            poll = select.poll()
            for file in (*self._pipes.values(), *files):
                poll.register(file, select.POLLIN)
            return {file for file, _ in poll.poll(math.ceil(seconds * 1000))}
        with select.epoll() as epoll:
            for file in files:
                epoll.register(file, select.EPOLLIN)
            for file in self._pipes.values():
                epoll.register(file, select.EPOLLIN | select.EPOLLEXCLUSIVE)
            return {file for file, _ in epoll.poll(seconds)}

    def take(self, ready: Collection[int]) -> bool:
        """Empty the pipes in *ready*; return whether there was a byte."""
        found = False
        for pipe in self._pipes.values():
            if pipe in ready:
                with suppress(BlockingIOError):
                    found = bool(os.read(pipe, 65536)) or found
        return found

    def close(self) -> None:
        """Close the pipes, and remove those that no other consumer has open. Safe to call twice."""
        pipes, self._pipes = self._pipes, {}
        for pipe in pipes.values():
            os.close(pipe)
        if pipes and self._pid == os.getpid():
            with suppress(OSError), self._locked(fcntl.LOCK_EX, 0.0) as locked:
                for queue in pipes if locked else ():
                    self._remove(self._directory / _pipe_of(queue))

    def _remove(self, path: Path) -> None:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.ENXIO:  # it has no reader
                path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, how: int, seconds: float) -> Iterator[bool]:
        """Within the block, nobody removes pipes (LOCK_SH), or opens any (LOCK_EX). Yields False if that
        cannot be had within *seconds*, because another process is frozen in such a block."""
        directory = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        until = time.monotonic() + seconds
        try:
            while True:
                try:
                    fcntl.flock(directory, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() >= until:
                        yield False
                        return
                    time.sleep(0.001)
                else:
                    yield True
                    return
        finally:
            os.close(directory)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


def _open_pipe(path: Path) -> int | None:
    """Return the descriptor of the pipe at *path*, which is created if necessary; None if pipes are not
    supported there, or it is another user's. Then the consumer looks for messages without notifications."""
    with suppress(FileExistsError):
        if not path.exists() and not _make_pipe(path):
            return None
    with suppress(PermissionError):
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def _pipe_of(queue: str) -> str:
    """Return the name of the file: that of the queue may be too long, or contain any character. If two
    queues share one, a consumer of the other may get a notification, and this one looks a second later."""
    name = queue.encode(errors="surrogatepass")
    return f"queue.{name[:90].hex()}.{binascii.crc32(name):x}"


class Notifier:
    """Writes to all pipes of one kind in *directory*, or to those of queues. Any thread.

    Pipes are kept open; the directory is read again only when its time stamp has changed.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._directory = directory
        self._place = str(directory)  # a Path would be turned into text at each notification
        self._prefix = f"{kind}."
        self._lock = threading.Lock()
        self._pipes: dict[str, int] = {}  # under _lock
        self._queues: dict[str, int] = {}  # under _lock
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

    def notify_one(self, queues: Collection[str]) -> None:
        """Wake one waiting consumer of each of *queues*."""
        with self._lock:
            for queue in queues:
                for pipe in self._pipes_of(queue):
                    try:
                        os.write(pipe, MESSAGE)
                        break
                    except BlockingIOError:
                        break  # full: nobody has read 65,536 notifications
                    except OSError:
                        os.close(self._queues.pop(queue))

    def _pipes_of(self, queue: str) -> Iterator[int]:
        """Yield the pipe of *queue* that is open, and that of today; nothing if nobody waits for it."""
        if queue in self._queues:
            yield self._queues[queue]
        with suppress(OSError):
            path = self._directory / _pipe_of(queue)
            self._queues[queue] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            yield self._queues[queue]

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
            for pipe in (*self._pipes.values(), *self._queues.values()):
                os.close(pipe)
            self._pipes.clear()
            self._queues.clear()
            self._seen = -1


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _after_fork() -> None:
    for notifier in list(_notifiers):
        notifier.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
