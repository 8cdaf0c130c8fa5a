"""Splitting values into portions, for servers that limit a request, or should not get all values at once.

Comes from:  transports, backends and schedules.
Goes to:     nothing.
Thread:      any; pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


def portions(values: Iterable[T], most: int) -> Iterator[list[T]]:
    """Yield *values* in lists of at most *most*."""
    rest = iter(values)
    while portion := list(islice(rest, most)):
        yield portion


def portions_by_size(
    values: Iterable[T], most: int, largest: int, size_of: Callable[[T], int]
) -> Iterator[list[T]]:
    """Like portions(), but the sum of sizes in a portion is at most *largest*, unless it is a single
    value."""
    portion: list[T] = []
    total = 0
    for value in values:
        size = size_of(value)
        if portion and (len(portion) == most or total + size > largest):
            yield portion
            portion, total = [], 0
        portion.append(value)
        total += size
    if portion:
        yield portion


def first_that_fit(found: Iterable[tuple[T, int]], largest: int) -> list[T]:
    """Return the first values of *found*, pairs of a value and its size, until their sizes add up to
    *largest*."""
    values: list[T] = []
    total = 0
    for value, size in found:
        if total >= largest:
            break
        total += size
        values.append(value)
    return values


def length_of(row: Iterable[Any]) -> int:
    """Return the size of *row*: the sum of the lengths of its texts and bytes."""
    return sum(len(value) for value in row if isinstance(value, bytes | str))
