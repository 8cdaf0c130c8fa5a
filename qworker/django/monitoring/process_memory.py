"""process_memory: memory of this machine, and how much its processes use.

Comes from:  process ids.
Goes to:     ``monitor.py``.
Thread:      any; nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qworker.process.memory import PROC, resident

try:
    import psutil
except ImportError:  # then /proc is read
    psutil = None

MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Machine:
    """available, total (megabytes): of the machine's memory; 0 if unknown."""

    available: float = 0.0
    total: float = 0.0

    @property
    def percent(self) -> float:
        """Return the percentage that is available."""
        return 100.0 * self.available / self.total if self.total else 0.0


def machine() -> Machine:
    """Return how much memory this machine has."""
    if psutil is not None:
        found = psutil.virtual_memory()
        return Machine(found.available / MEGABYTE, found.total / MEGABYTE)
    return machine_in(PROC)


def machine_in(proc: Path) -> Machine:
    """Return the content of the file meminfo in *proc*."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return Machine()
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
    return Machine(kilobytes.get("MemAvailable", 0) / 1024, kilobytes.get("MemTotal", 0) / 1024)


def used_by(pid: int) -> float:
    """Return the megabytes of memory that a process uses; 0 if it does not exist or cannot be read."""
    if psutil is not None:
        try:
            return float(psutil.Process(pid).memory_info().rss / MEGABYTE)
        except (psutil.Error, ValueError):
            return 0.0
    return (resident(pid) or 0) / MEGABYTE
