"""Reads the file of task records that `benchmarks.bodies` writes, and counts what is missing or doubled."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bodies import RECORD


class Record(NamedTuple):
    """One run of the task of that number; times in nanoseconds. A pause leaves a mark when it begins:
    `second` is 0."""

    task: int
    process: int
    first: int
    second: int


class Tally(NamedTuple):
    """How many tasks of a range ran: `lost` never ran, `repeated` counts the runs beyond the first."""

    expected: int
    lost: int
    repeated: int


def read(path: Path) -> list[Record]:
    """All records in the order they were written; an empty list when there is no file yet."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = len(data) - len(data) % RECORD.size
    return [Record(*fields) for fields in RECORD.iter_unpack(data[:whole])]


def count(path: Path) -> int:
    """How many records the file holds now."""
    try:
        return os.stat(path).st_size // RECORD.size
    except FileNotFoundError:
        return 0


def ended(records: Sequence[Record], base: int, expected: int) -> list[Record]:
    """The finished runs of the tasks numbered `base` to `base + expected - 1`."""
    return [record for record in records if record.second and base <= record.task < base + expected]


def tally(records: Sequence[Record], expected: int) -> Tally:
    """Count losses and repeats among finished runs of `expected` tasks."""
    distinct = len({record.task for record in records})
    return Tally(expected, expected - distinct, len(records) - distinct)
