"""A limit: a loop that is timed, and the figures that it bounds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BODY = b"x" * 300
"""The size of a small task's message."""

QUEUE = "qworker_benchmarks.limits"


@dataclass(frozen=True)
class Limit:
    """`measure` takes a directory for files and how many seconds to spend, and returns how many a second.

    `bounds` names the figures that cannot be better than this on the broker `group`.
    """

    title: str
    group: str
    measure: Callable[[Path, float], float]
    bounds: tuple[str, ...] = ()


def rate(step: Callable[[], object], each: int, seconds: float) -> float:
    """How many a second when `step` does `each` at a time; one step first that is not counted.

    Ends early when `step` returns False: there is nothing left to do.
    """
    step()
    done = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if step() is False:
            break
        done += each
    return done / (time.monotonic() - began)


def noise() -> float:
    """Milliseconds that a fixed loop takes now. Far above the least of a run, the machine was busy with other
    work."""
    began = time.perf_counter()
    total = 0
    for number in range(200_000):
        total += number
    return (time.perf_counter() - began) * 1e3
