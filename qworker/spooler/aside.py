"""What is set aside: files that nobody can run or that failed too often, kept with the reason.

Comes from:  ``claiming``, under the file's lock.
Goes to:     ``.qw-dead`` in the spool directory: the file under its own name, and a note beside it,
             NAME.json.
Thread:      the one that has the claim.

No spooler looks there. A file that is moved back is a job again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from qworker.clock import from_epoch
from qworker.spooler.names import DEAD
from qworker.transports.crash_points import CRASHING, crash_point


def set_aside(directory: int, path: str, *, reason: str, attempts: int, now: float) -> None:
    """Move *path* of the spool directory, whose descriptor is *directory*, and note why. OSError when that
    cannot be done; the file is still there then."""
    name = path.rpartition("/")[2]
    note = {"path": path, "reason": reason, "attempts": attempts, "at": from_epoch(now).isoformat()}
    with suppress(FileExistsError):
        os.mkdir(DEAD, 0o700, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(f"{DEAD}/{name}.json", flags, 0o600, dir_fd=directory)
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(note, stream)
    if CRASHING:
        crash_point("spool note written")
    os.rename(path, f"{DEAD}/{name}", src_dir_fd=directory, dst_dir_fd=directory)
