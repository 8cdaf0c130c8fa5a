"""Jobs as Disque's nodes tell of them.

Comes from:  ``queue.py`` and ``admin.py``, with replies.
Goes to:     the same.
Thread:      any; pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from qworker.transports.disque.url import Address

_RETRY = re.compile(rb',"retry":(\d{1,9})\}$')


@dataclass
class Hold:
    """How a job is ours. node: which gave it. until: the monotonic time at which it is queued again. warned:
    whether it was told that it cannot be kept for longer."""

    node: Address
    until: float
    warned: bool = False


def with_retry(text: str, retry: int) -> str:
    """*text*, JSON, with the seconds after which its job is queued again: GETJOB does not tell them."""
    return f'{text[:-1]},"retry":{retry}}}'


def retry_of(body: bytes) -> int | None:
    """The seconds after which a job of ours is queued again; None for a stranger's."""
    found = _RETRY.search(body, max(0, len(body) - 24))
    return int(found[1]) if found else None


def once(job_id: str) -> bool:
    """Whether a job is delivered once at most, and so never queued again."""
    return not int(job_id[-1], 16) & 1


def fields(told: list[Any]) -> dict[str, Any]:
    """What SHOW and JSCAN tell of a job, by name."""
    return {name.decode(): value for name, value in zip(told[::2], told[1::2], strict=True)}


def waits(job: dict[str, Any], now: float) -> bool:
    """Whether a job that is active waits for its time, and so is not with anybody. now: of the node."""
    return bool(job["delay"]) and job["ctime"] / 1e9 + job["delay"] > now
