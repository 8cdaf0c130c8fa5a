"""CPU affinity: the processors that a worker process may use.

Comes from:  ``worker_process_init``, in each new process.
Goes to:     the operating system.
Thread:      the main one of a child, before its first task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from qworker.django.conf import conf, logger


def processors_of(index: int, each: int, available: Sequence[int]) -> list[int]:
    """Return the processors of the worker process *index*, from 0: the next *each* of *available*, starting
    over at the end; all if *each* is 0 or more than there are."""
    count = len(available)
    if not 0 < each < count:
        return list(available)
    return [available[(index * each + step) % count] for step in range(each)]


def pin(index: int) -> None:
    """Pin this process to its processors, if ``cpu_affinity`` is set. Logs the result, also if the system
    does not support it."""
    each = conf.cpu_affinity
    if not each:
        return
    can = hasattr(os, "sched_setaffinity")
    available = sorted(os.sched_getaffinity(0)) if can else list(range(os.cpu_count() or 1))
    chosen = processors_of(index, each, available)
    if chosen == available:
        return
    if not can:
        logger.info("worker %d is not pinned to cpu %s: this system does not support it", index + 1, chosen)
        return
    try:
        os.sched_setaffinity(0, chosen)
    except OSError as error:
        logger.warning(
            "worker %d cannot be pinned to cpu %s, and uses all processors: %s", index + 1, chosen, error
        )
        return
    logger.info("worker %d will use cpu %s", index + 1, chosen)
