"""affinity: which processors each worker process of a cluster may use.

Comes from:  ``Q_CLUSTER['cpu_affinity']``, and the place of a process in the pool.
Goes to:     the operating system, where it knows of this; the log.
Thread:      the main one of a child, before its first task.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from qworker.django.conf import conf, logger


def processors_of(index: int, each: int, available: Sequence[int]) -> list[int]:
    """Return the processors of the worker process *index*, which counts from 0: the next *each* of those
    that are *available*, beginning again at the first. All of them where *each* is none or too many."""
    count = len(available)
    if not 0 < each < count:
        return list(available)
    return [available[(index * each + step) % count] for step in range(each)]


def pin(index: int) -> None:
    """Pin this process to its processors, if the settings say so. The log tells of it, also where the
    system cannot do it."""
    each = conf.cpu_affinity
    if not each:
        return
    can = hasattr(os, "sched_setaffinity")
    available = sorted(os.sched_getaffinity(0)) if can else list(range(os.cpu_count() or 1))
    chosen = processors_of(index, each, available)
    if chosen == available:
        return
    if not can:
        logger.info("worker %d would use cpu %s, which this system cannot be told", index + 1, chosen)
        return
    try:
        os.sched_setaffinity(0, chosen)
    except OSError as error:
        logger.warning("worker %d uses all processors: cpu %s is refused: %s", index + 1, chosen, error)
        return
    logger.info("worker %d will use cpu %s", index + 1, chosen)
