"""Parts to be stored: sorted by join, without invalid ones.

Comes from:  settlements and ``Joins.add``, with data from messages, which may be anything.
Goes to:     the stores that keep joins.
Thread:      any; pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable

from qworker.errors import EncodeError
from qworker.transports.lease import Part

MAX_ID = 255
"""Maximum characters of a join's id."""
MAX_SIZE = 2**31 - 1
"""Maximum members of a join."""


def by_join(parts: Iterable[Part]) -> dict[str, dict[int, Part]]:
    """Return the valid *parts* as {join: {number: part}}; the first one of each number counts. Joins and
    numbers are sorted, to avoid deadlocks."""
    found: dict[str, dict[int, Part]] = {}
    for part in parts:
        if may_be_id(part.join) and type(part.number) is int and 0 <= part.number < MAX_SIZE:
            found.setdefault(part.join, {}).setdefault(part.number, part)
    return {join: dict(sorted(found[join].items())) for join in sorted(found)}


def may_be_id(join: str) -> bool:
    """Return whether every store can keep a join with this id and distinguish it from others."""
    return type(join) is str and 0 < len(join) <= MAX_ID and join.isprintable() and join[-1] != " "


def check_join(join: str, size: int) -> None:
    """Raise EncodeError for an id or size that stores cannot keep."""
    if not may_be_id(join):
        raise EncodeError(
            f"{join!r:.300} is not the id of a join: it must have 1 to {MAX_ID} printable characters, and "
            "not end with a blank"
        )
    if type(size) is not int or not 0 <= size <= MAX_SIZE:
        raise EncodeError(f"a join of {size!r:.50} members: the maximum is {MAX_SIZE}")
