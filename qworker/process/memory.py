"""The memory of a process.

Comes from:  the worker, which reports it; a child of the pool, which ends above its limit; the monitor of a
             Django cluster.
Goes to:     Linux' ``/proc``.
Thread:      any.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def resident(pid: int) -> int | None:
    """Return the resident memory of a process in bytes; None if it is unknown, as on other systems."""
    try:
        with open(PROC / str(pid) / "statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
