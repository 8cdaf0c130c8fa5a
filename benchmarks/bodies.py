"""What the tasks do, the same for every peer, and the one record that each run of a task leaves behind.

A record is 24 bytes appended to the file named by BENCHMARK_RECORDS (on a tmpfs): index of the task, process
id, two times in nanoseconds. Bodies run in the peers' worker processes, on whatever thread the peer chooses;
only the standard library is used. `benchmarks.records` reads the file.
"""

import os
import struct
import time

RECORD = struct.Struct("<IIQQ")

TASKS = ("noop", "stored", "sized", "burn", "pause", "due")
"""The bodies that adapters make tasks of."""
IN_WORKFLOWS = ("stored", "step", "total")
"""Those whose results are kept. Only adapters that have workflows make tasks of all."""

_descriptor = -1
_owner = 0


def _write(index: int, first: int, second: int) -> None:
    global _descriptor, _owner
    process = os.getpid()
    if process != _owner:
        # A forked child opens its own: some pools close what they inherit.
        _descriptor = os.open(os.environ["BENCHMARK_RECORDS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        _owner = process
    os.write(_descriptor, RECORD.pack(index, process, first, second))


def noop(index: int) -> None:
    """Do nothing. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    _write(index, start, time.monotonic_ns())


def stored(index: int) -> int:
    """Do nothing and return a number, which the peer is to keep. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    _write(index, start, time.monotonic_ns())
    return index


def step(value: int, index: int) -> int:
    """Add one to what the call before returned. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    _write(index, start, time.monotonic_ns())
    return value + 1


def total(values: list[int], index: int) -> int:
    """Return the sum of what others returned. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    found = sum(values)
    _write(index, start, time.monotonic_ns())
    return found


def sized(index: int, content: str) -> None:
    """Do nothing with a large argument. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    _write(index, start, time.monotonic_ns())


def burn(index: int, milliseconds: float) -> None:
    """Use that much processor time of this thread. Record: start and end, monotonic."""
    start = time.monotonic_ns()
    until = time.thread_time_ns() + int(milliseconds * 1e6)
    while time.thread_time_ns() < until:
        pass
    _write(index, start, time.monotonic_ns())


def pause(index: int, seconds: float) -> None:
    """Sleep. Two records: one at the start whose end is 0, then start and end, monotonic."""
    start = time.monotonic_ns()
    _write(index, start, 0)
    time.sleep(seconds)
    _write(index, start, time.monotonic_ns())


async def async_pause(index: int, seconds: float) -> None:
    """The same for peers that run coroutines: others may run in the meantime."""
    import asyncio  # Not at the top: it would weigh in the processes of peers that do without it.

    start = time.monotonic_ns()
    _write(index, start, 0)
    await asyncio.sleep(seconds)
    _write(index, start, time.monotonic_ns())


def due(index: int, epoch: float) -> None:
    """Do nothing, at a set time. Record: the wall clock now, and the instant that was asked for."""
    now = time.time_ns()
    _write(index, now, int(epoch * 1e9))
