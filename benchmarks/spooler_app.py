"""What a spooler runs while it is measured, and what writes its jobs; uWSGI imports it, and qworker.

Comes from:  ``benchmarks.spooler``, which says by BENCHMARK_SIDE whose it is, by BENCHMARK_SPOOL what to do:
             "counted" and "timed" are spooler functions, "enqueue" writes BENCHMARK_COUNT jobs into
             BENCHMARK_PLACE at once.
Goes to:     BENCHMARK_RECORDS: a file for each process with how many jobs it ran, and when it began the
             first and the last; or for each job how long after it was sent it began; or the seconds that
             writing took.

The same function for both, and the same jobs.
"""

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

SIDE = os.environ.get("BENCHMARK_SIDE", "")
DO = os.environ.get("BENCHMARK_SPOOL", "")
RECORDS = os.environ.get("BENCHMARK_RECORDS", "")
SPOOL_OK = -2
SLOT = 3 * 8
"""Bytes: how many, the first, the last."""
JOB = {b"name": b"noop", b"number": b"12345", b"user": b"somebody@example.com", b"flag": b"1"}

_slot: Any = None
_log = -1


def counted(job: dict[Any, Any]) -> int:
    """Runs nothing, and counts it."""
    global _slot
    now = time.monotonic_ns()
    if _slot is None:
        file = os.open(f"{RECORDS}/{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, SLOT)
        _slot = memoryview(mmap.mmap(file, SLOT)).cast("Q")
        _slot[1] = now
    _slot[2] = now
    _slot[0] += 1
    return SPOOL_OK


def timed(job: dict[Any, Any]) -> int:
    """Writes down how many nanoseconds ago the job was sent."""
    global _log
    now = time.monotonic_ns()
    if _log < 0:
        _log = os.open(f"{RECORDS}/late", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_log, b"%d\n" % (now - int(job[b"sent"])))
    return SPOOL_OK


def enqueue(spool: Callable[[dict[bytes, bytes]], Any]) -> None:
    """Write all jobs, one after the other, and how long that took."""
    count = int(os.environ["BENCHMARK_COUNT"])
    began = time.perf_counter()
    for _ in range(count):
        spool(dict(JOB))  # uWSGI takes pairs out of what it is given
    seconds = time.perf_counter() - began
    with open(f"{RECORDS}/.seconds", "w") as file:
        file.write(str(seconds))
    os.rename(f"{RECORDS}/.seconds", f"{RECORDS}/seconds")


FUNCTIONS = {"counted": counted, "timed": timed}

if SIDE == "uwsgi":
    import uwsgi

    if DO == "enqueue":
        enqueue(uwsgi.spool)
    else:
        uwsgi.spooler = FUNCTIONS[DO]
elif SIDE == "qworker" and DO == "enqueue":
    from qworker.spooler import Writer

    enqueue(Writer(os.environ["BENCHMARK_PLACE"]).write)
elif SIDE == "qworker":
    from qworker import QWorker
    from qworker.spooler import uwsgi_api

    app = QWorker("benchmarks")
    uwsgi_api.spooler = FUNCTIONS[DO]
