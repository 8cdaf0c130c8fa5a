"""Copying: a spool file goes to another file system, whole or not at all.

Comes from:  ``administration``, which holds the lock of the file.
Goes to:     a file of the same name, owner, mode and time in the other directory, on the disk there.
Thread:      any.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress

from qworker.spooler.attempts import Attempts
from qworker.spooler.names import TEMPORARY, job_name
from qworker.transports.crash_points import CRASHING, crash_point


def copy(file: int, folder: int, name: str, attempts: Attempts, begun: int) -> None:
    """Write what the opened *file* holds as *name* in the directory whose descriptor is *folder*, as a job
    that was *begun* so often. It has its name when it is complete, and then survives a loss of power, too.
    OSError when that cannot be done; then it has no name there, unless only the name could not be synced."""
    status = os.fstat(file)
    temporary = TEMPORARY + job_name(time.time())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    written = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        os.lseek(file, 0, os.SEEK_SET)
        with open(file, "rb", closefd=False) as source, open(written, "wb", closefd=False) as target:
            shutil.copyfileobj(source, target)
        with suppress(PermissionError):  # only root gives files away
            os.fchown(written, status.st_uid, status.st_gid)
        os.fchmod(written, status.st_mode & 0o777)
        if begun:
            attempts.write(written, name, begun)
        os.utime(written, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.fsync(written)
        if CRASHING:
            crash_point("spool copy written")
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(temporary, dir_fd=folder)
        raise
    finally:
        os.close(written)
    os.fsync(folder)
    if CRASHING:
        crash_point("spool copy named")
