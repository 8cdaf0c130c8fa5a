"""What is set aside: files that nobody can run or that failed too often, kept with the reason.

Comes from:  ``claiming``, under the file's lock; ``administration``, which reads the notes.
Goes to:     ``.qw-dead`` in the spool directory: the file under its own name, and a note beside it,
             NAME.json.
Thread:      the one that has the claim.

No spooler looks there. A file that is moved back is a job again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import NamedTuple

from qworker.clock import from_epoch, parse_iso
from qworker.errors import SpoolError
from qworker.spooler.names import DEAD, job_path
from qworker.transports.crash_points import CRASHING, crash_point

LONGEST_NOTE = 65_536


class Note(NamedTuple):
    """What is known of a file that was set aside. path: where it was. at: when, epoch seconds; 0.0 when that
    was not noted."""

    path: str
    reason: str = "nothing was noted"
    attempts: int = 0
    at: float = 0.0


def set_aside(directory: int, path: str, *, reason: str, attempts: int, now: float) -> None:
    """Move *path* of the spool directory, whose descriptor is *directory*, and note why. OSError when that
    cannot be done; the file is still there then."""
    name = path.rpartition("/")[2]
    note = {"path": path, "reason": reason, "attempts": attempts, "at": from_epoch(now).isoformat()}
    with suppress(FileExistsError):
        os.mkdir(DEAD, 0o700, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(note_name(name), flags, 0o600, dir_fd=directory)
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(note, stream)
    if CRASHING:
        crash_point("spool note written")
    os.rename(path, f"{DEAD}/{name}", src_dir_fd=directory, dst_dir_fd=directory)


def note_name(name: str) -> str:
    """The path of the note beside the file *name*."""
    return f"{DEAD}/{name}.json"


def read_note(directory: int, name: str) -> Note:
    """The note of the file *name* that was set aside. What cannot be read, or leads anywhere else, stands as
    if it had not been noted."""
    try:
        file = os.open(note_name(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
        with open(file, "rb") as stream:
            noted = json.loads(stream.read(LONGEST_NOTE))
        path, reason, attempts = noted["path"], noted["reason"], noted["attempts"]
        if job_path(path).rpartition("/")[2] == name and isinstance(reason, str):
            return Note(path, reason, int(attempts), parse_iso(noted["at"]).timestamp())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, SpoolError):
        pass
    return Note(name)
