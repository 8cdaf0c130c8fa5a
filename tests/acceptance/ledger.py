"""Ledger: what tasks really did, written by the tasks themselves.

Comes from:  fault_tasks.py, in whatever process runs a task.
Goes to:     one text file, a line a record, and from there to the checks of invariants.py.
Thread:      any; a record is one write to a file opened with O_APPEND, so records never mix.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

STARTED, ENDED = "S", "E"
# The kernel writes a record that crosses two pages in two steps: a reader may come between them, and so may a
# kill -9. So each record begins a line of its own and says where it ends; what has no end was not written.
WHOLE = " ."


class Record(NamedTuple):
    """One line. kind: STARTED or ENDED. attempt: which delivery or retry. digest: of the arguments.

    monotonic and wall: seconds on the two clocks; monotonic is the same clock in all processes of the
    machine.
    """

    kind: str
    id: str
    attempt: int
    pid: int
    monotonic: float
    wall: float
    digest: int


def digest(arguments: Any) -> int:
    """A number that changes when the arguments do."""
    return zlib.crc32(repr(list(arguments)).encode())


def write(kind: str, id: str, attempt: int, number: int, path: str | None = None) -> None:
    fields = f"{kind} {id} {attempt} {os.getpid()} {time.monotonic():.6f} {time.time():.6f} {number}"
    record = f"\n{fields}{WHOLE}\n".encode()
    file = os.open(path or os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, record)
    finally:
        os.close(file)


@contextmanager
def run(task: Any) -> Iterator[None]:
    """Record the run of *task* (which is bound): its start, and its end unless it is cut short."""
    request = task.request
    attempt = request.deliveries + request.retries
    number = digest(request.args)
    write(STARTED, request.id, attempt, number)
    yield
    write(ENDED, request.id, attempt, number)


def read(path: Path) -> list[Record]:
    """All whole records, oldest first; a file that is not there yet is an empty ledger."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [
        Record(kind, id, int(attempt), int(pid), float(monotonic), float(wall), int(number))
        for kind, id, attempt, pid, monotonic, wall, number in (
            line.removesuffix(WHOLE).split() for line in text.splitlines() if line.endswith(WHOLE)
        )
    ]


def messages_run(path: Path) -> dict[str, set[int]]:
    """For each body of a join that ran the tags of its messages, as ``fault_tasks.close()`` writes them into
    the file at *path*. A message keeps its tag when it is delivered again."""
    found: dict[str, set[int]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        id, tag = line.split()
        found.setdefault(id, set()).add(int(tag))
    return found
