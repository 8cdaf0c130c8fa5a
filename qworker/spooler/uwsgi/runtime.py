"""The runtime state of spoolers: the processes of a directory, and its scan frequency.

Comes from:  the runner, which announces itself; ``uwsgi_api``, which reads, or sets the frequency.
Goes to:     ``.qw-spoolers`` in the spool directory: a file for each process, and one for the frequency.
Thread:      any.

A process that died without withdrawing is recognised by its id and start time.
"""

from __future__ import annotations

import math
import os
import stat
from contextlib import suppress

from qworker.errors import SpoolError

STATE = ".qw-spoolers"
"""The directory within a spool directory for the state of its spoolers."""
_FREQUENCY = "frequency"
_PROCESS = ".process"
_LONGEST = 64


def announce(directory: str | os.PathLike[str], pid: int | None = None) -> None:
    """Announce that this process, or *pid*, processes *directory* from now on. If there is no other such
    process, a frequency that was set earlier is deleted. May be repeated."""
    pid = os.getpid() if pid is None else pid
    place = state_place(directory)
    alive, others = _processes(place)
    if not alive:
        _remove(f"{place}/{_FREQUENCY}")
    for name in others:
        _remove(f"{place}/{name}")
    _put(place, f"{pid}{_PROCESS}", _started(pid))


def withdraw(directory: str | os.PathLike[str], pid: int | None = None) -> None:
    """End the announcement. May be repeated."""
    pid = os.getpid() if pid is None else pid
    _remove(os.path.join(directory, STATE, f"{pid}{_PROCESS}"))


def pids(directory: str | os.PathLike[str]) -> list[int]:
    """Return the ids of the processes on this machine that process *directory*, in order."""
    return sorted(_processes(os.path.join(directory, STATE))[0])


def set_frequency(directory: str | os.PathLike[str], seconds: float) -> None:
    """Set the seconds, more than 0, between two scans of *directory* for all its spoolers."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise SpoolError(f"a spooler's frequency must be a number of seconds above 0, not {seconds!r}")
    _put(state_place(directory), _FREQUENCY, f"{float(seconds)}")


def frequency_of(directory: str | os.PathLike[str], default: float) -> float:
    """Return the seconds between two scans that were set at run time; *default* if none were set."""
    try:
        seconds = float(_read(os.path.join(directory, STATE, _FREQUENCY)))
    except ValueError:
        return default
    return seconds if 0 < seconds < math.inf else default


def state_place(directory: str | os.PathLike[str]) -> str:
    """Return the path of ``.qw-spoolers``, created if missing, with the permissions of *directory*."""
    place = os.path.join(directory, STATE)
    try:
        with suppress(FileExistsError):
            os.mkdir(place, 0o700)
            os.chmod(place, stat.S_IMODE(os.stat(directory).st_mode))
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise SpoolError(f"{place} is not a directory: remove it")
    except OSError as error:
        raise SpoolError(f"{place} cannot be created: {error.strerror}") from error
    return place


def _processes(place: str) -> tuple[list[int], list[str]]:
    """Return the live processes, and the files of dead ones."""
    try:
        names = [name for name in os.listdir(place) if name.endswith(_PROCESS)]
    except OSError:
        return [], []
    alive: list[int] = []
    others: list[str] = []
    for name in names:
        digits = name.removesuffix(_PROCESS)
        pid = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 12 else 0
        if pid and _is_alive(pid) and _read(f"{place}/{name}") == _started(pid):
            alive.append(pid)
        else:
            others.append(name)
    return alive, others


def _put(place: str, name: str, text: str) -> None:
    """Write a file atomically. SpoolError when that fails."""
    temporary = f"{place}/.{name}.{os.getpid()}"
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with open(file, "w", encoding="ascii") as stream:
            stream.write(text)
        os.rename(temporary, f"{place}/{name}")
    except OSError as error:
        raise SpoolError(f"{place}/{name} cannot be written: {error.strerror}") from error


def _read(path: str) -> str:
    """Return the beginning of a file; '' if it does not exist."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(file, _LONGEST).decode("ascii", "replace")
        finally:
            os.close(file)
    except OSError:
        return ""


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _started(pid: int) -> str:
    """Return when process *pid* started, in the kernel's ticks; '' if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return stream.read(4096).rpartition(b")")[2].split()[19].decode("ascii")
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
