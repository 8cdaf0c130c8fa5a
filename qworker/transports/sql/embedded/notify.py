"""Notify: named pipes by which a process tells others on the machine that something has changed.

Comes from:  a process that has written to the database, after its commit.
Goes to:     each process that waits: it has a NotificationPipe in the directory beside the database. A new
             message is announced to one consumer of its queue, if there is one that is idle.
Thread:      a NotificationPipe belongs to one thread at a time; a Notifier to any.

A consumer is idle while nothing in its pipe is unread, which the kernel tells its writers. One that has no
room for messages writes a byte into its own pipe; one that does not read, because it is stopped, is passed
over from the second message on. A consumer that was notified, and then does not claim, notifies another.
"""

from __future__ import annotations

import binascii
import errno
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
    import termios
except ImportError:  # Windows, where there are no named pipes either
    fcntl = termios = None  # type: ignore[assignment]

MESSAGE = b"!"
BUSY = b"."
MOST_QUEUES = 20
"""How many queues the name of a pipe can tell. A consumer of more is told about messages of any queue."""
ANY = "any"
_NO_PIPES_HERE = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class NotificationPipe:
    """A named pipe to which others write a byte when something has changed. Owner: one thread at a time.

    kind: 'message' or 'revoked' (notified by publishers), or 'result' (notified by code that stores results).
    queues: for whose messages notify_one() may choose it. Where named pipes are not supported, fileno() is -1
    and wait() a sleep of at most 50 ms.
    """

    _fd = -1

    def __init__(self, directory: Path, kind: str, queues: Collection[str] = ()) -> None:
        self._name = f"{kind}.{os.getpid()}.{os.urandom(4).hex()}"
        self._path = directory / _with_queues(self._name, queues)
        self._pid = os.getpid()
        self._is_busy = False
        # Created under another name and opened first: a notifier must never see a pipe without a reader.
        hidden = directory / f".{self._path.name}"
        if _make_pipe(hidden):
            # Also its own writer, so that it never reads as hung up when the last notifier leaves.
            self._fd = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.rename(hidden, self._path)

    def fileno(self) -> int:
        return self._fd

    @property
    def name(self) -> str:
        """The name of its file."""
        return self._path.name

    def name_queues(self, queues: Collection[str]) -> None:
        """Be chosen for messages of *queues* from now on."""
        path = self._path.with_name(_with_queues(self._name, queues))
        if self._fd >= 0 and path != self._path:
            with suppress(OSError):  # it was deleted, or the disk is full: the consumer polls, too
                os.rename(self._path, path)
                self._path = path

    def become_busy(self) -> bool:
        """Not be chosen until clear() is called; return whether it was chosen before, so that another
        consumer needs to be notified instead."""
        if self._is_busy or self._fd < 0:
            return False
        self._is_busy = True
        with suppress(BlockingIOError):  # full, so it is passed over anyway
            os.write(self._fd, BUSY)
        return unread(self._fd) > len(BUSY)

    def become_idle(self) -> bool:
        """Be chosen again; return whether there was a notification since become_busy()."""
        return self._is_busy and self.clear() not in (b"", BUSY)

    def clear(self) -> bytes:
        """Empty the pipe; return the bytes in it, b"" if there were none."""
        self._is_busy = False
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


def _with_queues(name: str, queues: Collection[str]) -> str:
    """Return the name of the file of a pipe, which ends with the digests of *queues*."""
    digests = [ANY] if len(queues) > MOST_QUEUES else [_digest(queue) for queue in queues]
    return ".".join([name, *digests])


def _digest(queue: str) -> str:
    """Return what stands for *queue* in names of files. If two queues share one, a consumer of the other may
    be notified; then this one's consumers find the message when they look for messages the next time."""
    return f"{binascii.crc32(queue.encode(errors='surrogatepass')):08x}"


def unread(pipe: int) -> int:
    """Return how many bytes are in *pipe*; 0 if the system does not tell."""
    try:
        return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return 0


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
        self._pipes: dict[str, int] = {}  # under _lock, as all below
        self._by_queue: dict[str, list[str]] = {}
        """The names of pipes, by the digest of a queue."""
        self._turns: dict[str, int] = {}
        """How often a consumer was chosen, by the digest of a queue."""
        self._seen = -1
        _notifiers.add(self)

    def notify(self) -> None:
        """Write to all pipes."""
        with self._lock:
            if self._find():
                for name in list(self._pipes):
                    self._write(name)

    def notify_one(self, queues: Collection[str], but: str = "") -> None:
        """Wake one idle consumer of each of *queues*; if all are busy, the first that has room. but: the name
        of a pipe that is not chosen."""
        with self._lock:
            if not self._find():
                return
            for name in self._by_queue.get(ANY, ()):  # also, not instead: it may not consume the queue
                if name != but and self._is_idle(name):
                    self._write(name)
            for queue in sorted(queues):
                if names := self._by_queue.get(digest := _digest(queue)):
                    turn = self._turns[digest] = (self._turns.get(digest, -1) + 1) % len(names)
                    self._wake_one([name for name in names[turn:] + names[:turn] if name != but])

    def _wake_one(self, names: Sequence[str]) -> None:
        for name in names:
            # If it has become busy just before the byte was written, it does not pass the byte on.
            if self._is_idle(name) and self._write(name) and self._is_idle(name, 1):
                return
        for name in names:
            if self._write(name):
                return

    def tidy(self) -> None:
        """Remove the pipes of dead processes, which notify() also does."""
        with self._lock:
            self._find()
        self.close()

    def _is_idle(self, name: str, notified: int = 0) -> bool:
        """Whether at most *notified* bytes in the pipe *name* are unread."""
        return name in self._pipes and unread(self._pipes[name]) <= notified

    def _write(self, name: str) -> bool:
        """Write to the pipe *name*; return False if it has no reader. A full pipe is skipped."""
        if name not in self._pipes:
            return False
        try:
            os.write(self._pipes[name], MESSAGE)
        except BlockingIOError:
            pass  # full: its reader has 65,536 unread notifications
        except OSError:
            self._drop(name)
            return False
        return True

    def _find(self) -> bool:
        """Open the pipes that were created since the last time; return False if there is no directory."""
        try:
            changed = os.stat(self._place).st_mtime_ns
        except OSError:
            return False
        if changed != self._seen:
            self._look(changed)
        return True

    def _look(self, changed: int) -> None:
        # A pipe made in the same tick of the clock as the last change would go unseen: look again next time.
        settled = time.time_ns() - changed > 50_000_000
        names = {name for name in os.listdir(self._directory) if name.startswith(self._prefix)}
        for name in self._pipes.keys() - names:
            self._drop(name, unlink=False)
        for name in sorted(names - self._pipes.keys()):
            try:
                self._pipes[name] = os.open(
                    self._directory / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                )
            except OSError as error:
                if error.errno == errno.ENXIO:  # its reader is dead
                    (self._directory / name).unlink(missing_ok=True)
                elif error.errno in (errno.EMFILE, errno.ENFILE):
                    settled = False
        hung_up = select.poll()
        for pipe in self._pipes.values():
            hung_up.register(pipe, 0)
        dead = {pipe for pipe, _ in hung_up.poll(0)}
        for name in [name for name, pipe in self._pipes.items() if pipe in dead]:
            self._drop(name)
        by_queue: dict[str, list[str]] = {}
        for name in sorted(self._pipes):  # the simulator needs the same order in each run
            for digest in name.split(".")[3:]:
                by_queue.setdefault(digest, []).append(name)
        self._by_queue = by_queue
        for digest in self._turns.keys() - by_queue.keys():
            del self._turns[digest]
        self._seen = changed if settled else -1  # last: this may be interrupted

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
            self._by_queue.clear()
            self._seen = -1


_notifiers: weakref.WeakSet[Notifier] = weakref.WeakSet()


def _after_fork() -> None:
    for notifier in list(_notifiers):
        notifier.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
