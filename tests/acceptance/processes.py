"""Processes as seen by the kernel: parents, states, memory.

Comes from:  /proc. Goes to: harness.py, private_servers.py and the fault tests. Thread: any.
"""

from __future__ import annotations

import os
import signal


def children(pid: int) -> list[int]:
    """The ids of the children of *pid*, of all its threads; [] if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(below for child in found for below in descendants(child))]


def state(pid: int) -> str:
    """The kernel's letter for the state of *pid*; X if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def gone(pid: int) -> bool:
    """Whether *pid* no longer runs (a zombie that was not reaped counts as gone).

    The first thread may be a zombie while others, which keep the sockets open, are still dying.
    """
    if state(pid) not in "ZX":
        return False
    try:
        return len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def command_of(pid: int) -> str:
    """The command line of *pid* if it is a qworker process; '' otherwise."""
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            command = file.read().replace("\0", " ")
    except OSError:
        return ""
    return command if "qworker" in command else ""


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Bytes of memory of *pid*, including shared memory; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
