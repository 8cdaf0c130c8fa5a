"""Jobs as Disque's nodes tell of them.

Comes from:  ``queue.py``, with replies.
Goes to:     the same.
Thread:      any; pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qworker.transports.disque.url import Address


@dataclass
class Hold:
    """How a job is ours. job: its id. node: which gave it. until: the monotonic time at which it is queued
    again."""

    job: str
    node: Address
    until: float


def once(job_id: str) -> bool:
    """Whether a job is delivered once at most, and so never queued again."""
    return not int(job_id[-1], 16) & 1


def fields(told: list[Any]) -> dict[str, Any]:
    """What SHOW and JSCAN tell of a job, by name."""
    return {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


def waits(job: dict[str, Any], now: float) -> bool:
    """Whether a job that is active waits for its time, and so is not with anybody. now: of the node."""
    return bool(job["delay"]) and job["ctime"] / 1e9 + job["delay"] > now
