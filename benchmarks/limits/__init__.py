"""What the machine and the servers themselves allow, measured just before a run: no queue on them can pass
these.

Each limit is one plain loop around the server's own client, with a message of 300 bytes.
"""

import sys
from collections.abc import Collection
from pathlib import Path

from benchmarks.limits import machine, mariadb, postgresql, rabbitmq, redis, sqlite
from benchmarks.limits.limit import Limit
from benchmarks.metrics import Metric

LIMITS: tuple[Limit, ...] = (
    *sqlite.LIMITS,
    *machine.LIMITS,
    *redis.LIMITS,
    *rabbitmq.LIMITS,
    *postgresql.LIMITS,
    *mariadb.LIMITS,
)

__all__ = ["LIMITS", "Limit", "bound", "measure"]


def measure(groups: Collection[str], directory: Path, seconds: float = 1.0) -> dict[str, float]:
    """The limits of those brokers, and of the machine: title to how many a second; `seconds` are spent on
    each.

    One that cannot be measured, for want of a server or of its client, is left out, and standard error says
    why.
    """
    found = {}
    for limit in LIMITS:
        if limit.group not in (*groups, machine.GROUP):
            continue
        try:
            found[limit.title] = limit.measure(directory, seconds)
        except Exception as error:  # noqa: BLE001 - any client's error, a missing client among them.
            print(f"no limit: {limit.title}: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def bound(found: dict[str, float], metric: Metric, group: str) -> float | None:
    """What bounds the metric on that broker, in the metric's unit: the rate itself, or for waits the time of
    one."""
    for limit in LIMITS:
        if limit.group == group and metric.name in limit.bounds and limit.title in found:
            rate = found[limit.title]
            return 1e3 / rate if metric.unit == "ms" else rate
    return None
