"""Owner files of a consumer: a lock that shows that it is alive, and its running file.

Comes from:  the consumers; the children, which record what they run (``process/running_file.py``).
Goes to:     the directory of the embedded database, or for a broker that is a server, a directory of this
             user; and consumers that reclaim.
Thread:      the listener's.

The kernel releases the lock when the process ends, so on one machine a death is noticed at once. Only an
existing unlocked file proves it. A missing file may belong to another container, where the lease must expire.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from binascii import crc32
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from qworker.clock import boot_id
from qworker.process.randomness import RANDOM
from qworker.process.running_file import SLOT

try:
    import fcntl
except ImportError:  # Windows: a consumer's death is only noticed by its lease
    fcntl = None  # type: ignore[assignment]

PROMPT_SECONDS = 1.0
"""If checking the leases of other consumers takes longer, the server was blocked, and they may not have been
able to renew."""
LONG_DEAD = 86400.0
"""Seconds after which the files of a consumer are no longer needed, if its broker is a server."""
LOOKS_AGAIN = 10
"""After how many looks LocalDeaths examines ignored locks again."""
NEIGHBOURS = 2
STRAY = 2
"""How many locks of others each consumer examines: those after its own, and random ones, in case those before
them are frozen. In one second nearly all are examined, at a cost that does not grow with their number."""
SETTLED_SECONDS = 1.0
"""The time of a directory that is younger may not show its next change."""
_NAME = re.compile(r"[0-9]+\.[0-9a-f]{12}\.(?:lock|running)")
"""The only accepted file names, because anyone who can write to the broker could name any file."""


def runtime_directory() -> Path | None:
    """Return a directory of this user for the files of workers; None if none is writable."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    user = os.getuid() if hasattr(os, "getuid") else 0
    for path in (Path(base, "qworker") if base else None, Path(tempfile.gettempdir(), f"qworker-{user}")):
        if path is None:
            continue
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700, exist_ok=True)
            status = path.lstat()
            # In another user's directory, or through a link, others could fake our death.
            if stat.S_ISDIR(status.st_mode) and status.st_uid == user and os.access(path, os.W_OK):
                return path
    return None


class OwnerFiles:
    """The files of this process as a consumer.

    - directory: returns their directory, or None if there is none; called when they are needed.
    - place: the name of the broker's database. Consumers with the same name examine each other's locks. It
      does not include the host, which has several names.
    - lock: path of the locked file, '' if there is none.
    """

    def __init__(self, directory: Callable[[], Path | None], place: str = "") -> None:
        self._directory = directory
        self._place = place
        self._running: str | None = None
        self._file = -1
        self._copied = b""
        self.lock = ""

    @property
    def running(self) -> str:
        """Path of the running file, which does not change; '' if there is none."""
        if self._running is None:
            directory = self._directory()
            name = f"{os.getpid()}.{_group_of(self._place)}{os.urandom(4).hex()}.running"
            self._running = "" if directory is None else str(directory / name)
        return self._running

    def take(self) -> None:
        """Create the lock, if possible; without it, other consumers only notice our death by the lease.

        Called for each generation, before it is visible to them. An existing lock is kept.
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
            forget(path)  # an unlocked file would report our death
            os.close(file)
        else:
            self._file, self.lock = file, path

    def copy_running(self, write: Callable[[set[int]], object]) -> None:
        """Call *write* with the running tags if they have changed since the last call."""
        data = _read(self.running) or b""
        if data != self._copied:
            write(_tags(data))
            self._copied = data

    def tidy(self, known: Collection[str] = (), age: float = LONG_DEAD) -> None:
        """Delete files of processes that ended more than *age* seconds ago and were not reclaimed.

        known: names of running files to keep, because their consumers are still to be reclaimed from here.
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
        """Context for giving back held messages; deletes the files afterwards. On an error the lock file
        stays, unlocked, so that other consumers on this machine see that this one is dead."""
        try:
            yield
            forget(self.lock)
        finally:
            forget(self._running or "")
            self.let_go()

    def let_go(self) -> None:
        """Close the lock and keep the files. A forked child must call it, so that the lock does not outlive
        the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self.lock = ""


def lock_beside(running: str) -> str:
    """Return the path of the lock of the running file *running*."""
    return f"{running.removesuffix('.running')}.lock"


def died(lock: str, boot: str) -> bool:
    """Return whether the process that created the file *lock* in the boot *boot* is certainly dead."""
    return boot == boot_id() and _is_named(lock) and _is_free(lock)


def running_tags(running: str) -> set[int] | None:
    """Return the tags in the running file *running*; None if it does not exist here."""
    data = _read(running) if _is_named(running) else None
    return None if data is None else _tags(data)


def copied_tags(text: str) -> set[int]:
    """Return the tags that a consumer has copied to its record as *text*, for other hosts."""
    return {int(tag) for tag in text.split() if tag.isascii() and tag.isdigit() and len(tag) < 20}


def left_by_the_dead(running: str, known: Collection[str] = ()) -> Iterator[tuple[str, set[int]]]:
    """Yield the names, except *known*, and running tags of dead consumers with files in the directory of
    *running*."""
    for path in _free_locks(running):
        if path.stem not in known:
            tags = running_tags(str(path.with_suffix(".running")))
            if tags is not None:  # otherwise it is about to take its lock, or has run nothing yet
                yield path.stem, tags


def _free_locks(running: str) -> Iterator[Path]:
    """Yield the free locks in the directory of the running file *running*; nothing if that is ''."""
    with contextlib.suppress(OSError):
        for path in Path(running).parent.glob("*.lock") if running else ():
            if _is_free(str(path)):
                yield path


def _group_of(place: str) -> str:
    """Return the four digits that the names of the files of consumers at *place* share."""
    return f"{crc32(place.encode()) & 0xFFFF:04x}"


def _key(name: str) -> str:
    """Return the digits in a file's *name*: those of its group, and random ones."""
    return name.partition(".")[2]


class LocalDeaths:
    """Shows without asking a broker whether consumers on this machine may have died: from their locks."""

    def __init__(self) -> None:
        self._ignored: set[str] = set()
        """Free locks that belong to none of the broker's consumers."""
        self._looks = 0
        self._others: list[str] = []
        """The locks in our group, without ours, from the one after it."""
        self._listed_at = -1
        """The modification time, in nanoseconds, of the directory that they were read from; -1: it may have
        changed since."""

    def look(self, running: str) -> set[str]:
        """Return the paths of free locks in the group and the directory of the running file *running*,
        without ignored ones. These are examined only now and then: there may be hundreds, of workers that
        were killed. Of more than a few others some are examined, and all if one of those is free. The first
        look examines all."""
        self._looks += 1
        if self._looks % LOOKS_AGAIN == 0:  # a consumer creates its lock before it takes it
            self._ignored = set(filter(_is_free, self._ignored))
        others = [path for path in self._beside(running) if path not in self._ignored]
        some = others
        if self._looks > 1 and len(others) > NEIGHBOURS + STRAY:
            some = others[:NEIGHBOURS] + RANDOM.sample(others[NEIGHBOURS:], STRAY)
        return set(filter(_is_free, others)) if any(map(_is_free, some)) else set()

    def _beside(self, running: str) -> list[str]:
        """Return the other locks in the group of *running*, from the one after its own."""
        if not running or fcntl is None:
            return []
        directory, own = os.path.split(lock_beside(running))
        try:
            changed_at = os.stat(directory).st_mtime_ns
            if changed_at != self._listed_at:
                group = f".{_key(own)[:4]}"
                names = [name for name in os.listdir(directory) if name.endswith(".lock") and group in name]
                names.sort(key=lambda name: (_key(name) <= _key(own), _key(name)))
                self._others = [os.path.join(directory, name) for name in names if name != own]
                settled = changed_at < time.time_ns() - SETTLED_SECONDS * 1e9
                self._listed_at = changed_at if settled else -1
        except OSError:
            return []
        return self._others

    def ignore(self, locks: Collection[str]) -> None:
        """Do not return *locks* again while they stay free: the broker knows no consumers with them."""
        self._ignored.update(locks)


def forget(path: str) -> None:
    """Delete a consumer's file, if it exists."""
    with contextlib.suppress(OSError):
        if _is_named(path):
            os.unlink(path)


def delete_files(lock: str) -> None:
    """Delete the files of a dead consumer with the lock *lock*."""
    forget(lock)
    forget(f"{lock.removesuffix('.lock')}.running")


def _is_named(path: str) -> bool:
    """Return whether *path* has the name of an owner file."""
    return isinstance(path, str) and "\0" not in path and _NAME.fullmatch(os.path.basename(path)) is not None


def _is_free(path: str) -> bool:
    """Return whether the file exists and is not locked."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two processes can check at the same time.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _ended(path: str) -> bool:
    """Return whether the process whose id begins the file's name has ended."""
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
