"""Ledger: what tasks really did, recorded by the tasks themselves.

Comes from:  fault_tasks.py, in whatever process runs a task.
Goes to:     one text file with a record per line, read by the checks of invariants.py.
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
# The kernel writes a record that crosses two pages in two steps: a reader, or kill -9, may come between them.
# So each record begins on a new line and has an end mark; without it the record is ignored.
WHOLE = " ."


class Record(NamedTuple):
    """One line. kind: STARTED or ENDED. attempt: number of the delivery or retry. digest: of the
    arguments.

    monotonic and wall: seconds on the two clocks; the monotonic clock is shared by all processes of the
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
    """A number that changes if the arguments do."""
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
    """Record the run of *task* (which is bound): its start, and its end unless the process dies."""
    request = task.request
    attempt = request.deliveries + request.retries
    number = digest(request.args)
    write(STARTED, request.id, attempt, number)
    yield
    write(ENDED, request.id, attempt, number)


def read(path: Path) -> list[Record]:
    """All complete records, oldest first; a missing file is an empty ledger."""
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
    """For each body of a join that ran, the tags of its messages, as ``fault_tasks.close()`` writes them
    to the file at *path*. A message keeps its tag when it is redelivered."""
    found: dict[str, set[int]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        id, tag = line.split()
        found.setdefault(id, set()).add(int(tag))
    return found
