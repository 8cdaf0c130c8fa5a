"""Names: of spool files, of priorities, and the order in which names are worked off.

Comes from:  ``writing``, which needs new ones; ``scanning`` and ``candidates``, which sort them.
Goes to:     a spool directory; what another spooler takes for a job there, and what it leaves alone.
Thread:      any.

The natural order is that of versions: runs of digits compare as numbers, and a run that begins with a zero
as the digits of a fraction do, so 000, 00, 01, 010, 09, 0, 1, 9, 10. It is uWSGI's, when it is told to keep
an order.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from itertools import count

from qworker.errors import SpoolError
from qworker.safe_repr import safe_repr

PREFIX = "uwsgi_spoolfile_on_"
"""How the name of every job begins. Whatever begins otherwise is no job, and is left alone."""
TEMPORARY = ".qw-tmp-"
"""How the name of a file begins that is being written."""
DEAD = ".qw-dead"
"""The directory within a spool directory for what was set aside."""
LONGEST = 255
"""Bytes in a file name."""

_counter = count(1)  # next() of it is one step: no two threads get the same number
_digits = re.compile(rb"[0-9]+")


def job_name(now: float) -> str:
    """A name for a new job: host, process, number in this process, a random number, seconds, microseconds."""
    chance = int.from_bytes(os.urandom(4), "little") >> 1
    seconds, microseconds = divmod(int(now * 1_000_000), 1_000_000)
    return f"{_beginning(os.getpid())}{next(_counter)}_{chance}_{seconds}_{microseconds}"


@lru_cache(maxsize=1)
def _beginning(process: int) -> str:
    """Prefix, host and process: the same for all jobs of a process, and another one in its children."""
    return f"{PREFIX}{os.uname().nodename.replace('/', '_')}_{process}_"


def natural_key(name: str) -> bytes:
    """A key to sort *name* by, in natural order."""
    return _digits.sub(_number_key, os.fsencode(name))


def _number_key(match: re.Match[bytes]) -> bytes:
    digits = match[0]
    if digits[0] != 48:
        return b"1" + len(digits).to_bytes(2, "big") + digits  # the longer number is the larger
    # A run of zeros alone comes after those that go on; ":" is the byte after "9".
    return digits if digits.strip(b"0") else digits + b":"


def path_key(path: str) -> tuple[bytes, ...]:
    """The same for a path within a spool directory: a directory is worked off where its name sorts."""
    return tuple(map(natural_key, path.split("/")))


def is_priority(name: str) -> bool:
    """Whether a directory of this name is entered when an order is kept: digits and nothing else."""
    return name.isascii() and name.isdigit()


def job_path(name: str) -> str:
    """The path of a job within its spool directory, as a person names it: the name of its file, with its
    priority and a slash before it when it has one. It leads nowhere else.

    SpoolError when it is no such name.
    """
    *folders, own = name.split("/")
    fits = own.startswith(PREFIX) and all(map(is_priority, folders)) and "\0" not in name
    if not fits or any(len(os.fsencode(part)) > LONGEST for part in (*folders, own)):
        raise SpoolError(
            f"{safe_repr(name)} is not the name of a job, such as {PREFIX}HOST_1_2 or, with its priority, "
            f"10/{PREFIX}HOST_1_2: take what `qworker spool ls` shows"
        )
    return name


def priority_name(priority: str | bytes | int, *, words: bool = False) -> str:
    """The directory for jobs of *priority*; '' for none. words: a name that is no number is allowed, too.

    SpoolError when it is not allowed, or could lead anywhere else.
    """
    name = os.fsdecode(priority) if isinstance(priority, bytes) else str(priority)
    if not name or is_priority(name):
        fits = len(name) <= LONGEST
    else:
        fits = (
            words
            and not name.startswith((".", PREFIX))
            and "/" not in name
            and "\0" not in name
            and len(name.encode(errors="surrogateescape")) <= LONGEST
        )
    if not fits:
        allowed = "a plain name without '/' that begins with no dot" if words else "digits, such as 1 or 10"
        raise SpoolError(f"a priority is the name of a directory: {allowed}, not {safe_repr(name)}")
    return name
