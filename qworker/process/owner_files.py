"""Owner files: those of one consumer, a lock that shows that it lives, and its running file.

Comes from:  the consumers; the children, which note what they run
             (``process/running_file.py``).
Goes to:     a directory beside the embedded database, or where the broker is a server one of this user on
             this machine; and who reclaims.
Thread:      the listener's.

The kernel drops the lock with the process, so on one machine a death is seen at once. Only a file that is
here and not locked says so: no file at all may mean another container, and there the lease must run out.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from qworker.clock import boot_id
from qworker.process.running_file import SLOT

try:
    import fcntl
except ImportError:  # Windows: a consumer's death is known by its lease alone
    fcntl = None  # type: ignore[assignment]

PROMPT_SECONDS = 1.0
"""A look at the leases of others that takes longer met a server that stood still. They could not renew them
either, so what it saw of their silence says nothing."""
LONG_DEAD = 86400.0
"""Seconds after which nobody will ask for the files of a consumer whose broker is a server."""
_NAME = re.compile(r"[0-9]+\.[0-9a-f]{12}\.(?:lock|running)")
"""What their names are. Whoever can write to the broker can name any file of this machine as a consumer's."""


def runtime_directory() -> Path | None:
    """A directory of this user alone, on this machine, for the files of workers; None where nothing can be
    written."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid() if hasattr(os, "getuid") else 0
    for path in (Path(base, "qworker") if base else None, Path(tempfile.gettempdir(), f"qworker-{user}")):
        if path is None:
            continue
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
            # Another user's directory, or a link to somewhere, would let others play dead for us.
            if stat.S_ISDIR(status.st_mode) and status.st_uid == user and os.access(path, os.W_OK):
                return path
    return None


class OwnerFiles:
    """The files of this process as a consumer, in *directory*, which is asked for when they are needed; None:
    nowhere.

    lock: path of the locked file, '' while there is none.
    """

    def __init__(self, directory: Callable[[], Path | None]) -> None:
        self._directory = directory
        self._running: str | None = None
        self._file = -1
        self._copied = b""
        self.lock = ""

    @property
    def running(self) -> str:
        """Path of the running file, '' where there is no place for it; the same as long as this object is."""
        if self._running is None:
            directory = self._directory()
            name = f"{os.getpid()}.{os.urandom(6).hex()}.running"
            self._running = "" if directory is None else str(directory / name)
        return self._running

    def take(self) -> None:
        """Make the lock, if that can be done here; without it, the lease alone tells of our death.

        To be called for each generation, before anybody can read of it. A lock that is still there is kept.
        """
        self._copied = b""
        if fcntl is None or not self.running or (self.lock and os.path.exists(self.lock)):
            return
        self.let_go()
        path = lock_beside(self.running)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            forget(path)  # unlocked, it would tell of our death
            os.close(file)
        else:
            self._file, self.lock = file, path

    def copy_running(self, write: Callable[[set[int]], object]) -> None:
        """Have *write* take the tags that run, when they are others than it last took."""
        data = _read(self.running) or b""
        if data != self._copied:
            write(_tags(data))
            self._copied = data

    def tidy(self, known: Collection[str] = (), age: float = LONG_DEAD) -> None:
        """Delete what processes left behind that ended more than *age* seconds ago, and that nobody
        reclaimed.

        known: running files, by name, of consumers that are yet to be reclaimed from here: these stay.
        """
        spared = {name.removesuffix(".running") for name in known}
        before = time.time() - age
        over = {".lock": _is_free, ".running": _ended}
        with contextlib.suppress(OSError):
            for path in Path(self.running).parent.iterdir() if self.running else ():
                if path.suffix not in over or path.stem in spared:
                    continue
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime <= before and over[path.suffix](str(path)):
                        path.unlink()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Around giving back what is held: then the files go. Where that fails the lock stays, free, and
        tells others on this machine that the consumer is dead."""
        try:
            yield
            forget(self.lock)
        finally:
            forget(self._running or "")
            self.let_go()

    def let_go(self) -> None:
        """Close the lock and leave the files; in a forked child, without which the parent's lock would
        outlive it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.lock = ""


def lock_beside(running: str) -> str:
    """The path of the lock of the consumer whose running file is *running*."""
    return f"{running.removesuffix('.running')}.lock"


def died(lock: str, boot: str) -> bool:
    """Whether the process is certainly dead that made the file *lock* in the boot of the name *boot*."""
    return boot == boot_id() and _is_named(lock) and _is_free(lock)


def running_tags(running: str) -> set[int] | None:
    """The tags in the running file *running*; None when there is no such file here."""
    data = _read(running) if _is_named(running) else None
    return None if data is None else _tags(data)


def copied_tags(text: str) -> set[int]:
    """The tags that a consumer has copied to its record for other hosts, as *text*."""
    return {int(tag) for tag in text.split() if tag.isascii() and tag.isdigit() and len(tag) < 20}


def left_by_the_dead(running: str, known: Collection[str] = ()) -> Iterator[tuple[str, set[int]]]:
    """The names of dead consumers whose files are beside *running*, without those *known*, and the tags that
    each had marked."""
    with contextlib.suppress(OSError):
        for path in Path(running).parent.glob("*.lock"):
            if path.stem not in known and _is_free(str(path)):
                tags = running_tags(str(path.with_suffix(".running")))
                if tags is not None:  # else it is only about to take its lock, or ran nothing yet
                    yield path.stem, tags


def forget(path: str) -> None:
    """Delete a consumer's file, if it is here."""
    with contextlib.suppress(OSError):
        if _is_named(path):
            os.unlink(path)


def bury(lock: str) -> None:
    """Delete the files of a dead consumer, whose lock is *lock*."""
    forget(lock)
    forget(f"{lock.removesuffix('.lock')}.running")


def _is_named(path: str) -> bool:
    """Whether *path* may be that of an owner file."""
    return isinstance(path, str) and "\0" not in path and _NAME.fullmatch(os.path.basename(path)) is not None


def _is_free(path: str) -> bool:
    """Whether the file is there, and nobody locks it."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask do not mislead each other
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _ended(path: str) -> bool:
    """Whether the process has ended whose number the file's name begins with."""
    try:
        os.kill(int(os.path.basename(path).partition(".")[0]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _tags(data: bytes) -> set[int]:
    return {mark for (mark,) in SLOT.iter_unpack(data[: len(data) // SLOT.size * SLOT.size]) if mark}
