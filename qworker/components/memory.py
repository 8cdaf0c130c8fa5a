"""Memory: how much of it processes of a worker have.

Comes from:  the kernel.
Goes to:     ``presence_report.py``, ``status/metrics.py``.
Thread:      any.
"""

from __future__ import annotations

import os


def resident(pid: int) -> int | None:
    """Resident memory of a process, bytes; None when nobody knows."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
