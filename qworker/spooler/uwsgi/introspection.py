"""Introspection: waiting jobs, in the format of uWSGI's API.

Comes from:  ``uwsgi_api``.
Goes to:     the directories, read only; no lock is lost.
Thread:      any.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from qworker.errors import InvalidPacket, SpoolError
from qworker.spooler.files.locks import best_lock
from qworker.spooler.files.packet import decode, job_path
from qworker.spooler.uwsgi.job_context import own_task
from qworker.spooler.watching.scanning import scan_in_order


def jobs(directories: Sequence[str]) -> list[bytes]:
    """Return the absolute paths of all waiting and running jobs, including those with a priority. uWSGI only
    reads the first directory, and no priorities."""
    found = []
    for directory in directories:
        with suppress(OSError):  # not made yet
            for path, _ in scan_in_order(directory, math.inf, lambda folder: None):
                found.append(os.fsencode(f"{directory}/{path}"))
    return found


def task(directories: Sequence[str], path: str | bytes) -> dict[Any, Any] | None:
    """Return the content of a waiting job, in the form of its function's argument, with its path as
    ``spooler_task_name``.

    None when the directories have no such job, when it cannot be read, and while another process runs it; a
    running job can read its own content.
    """
    name = os.fsdecode(path)
    if "\0" in name:
        return None
    found = own_task(name)
    if found is not None:
        return {**found, "spooler_task_name": os.fsencode(name)}
    try:
        image = _image(directories, name)
    except (OSError, SpoolError):
        return None
    if image is None:
        return None
    try:
        pairs, body = decode(image)
    except InvalidPacket:
        return None
    env: dict[Any, Any] = {"spooler_task_name": os.fsencode(name), **pairs}
    if body:
        env["body"] = body
    return env


def _image(directories: Sequence[str], name: str) -> bytes | None:
    """Return the bytes of the file; None when it is running or missing. SpoolError when the name is not a
    job's."""
    for directory in directories:
        folder = os.path.realpath(os.path.dirname(name))
        if folder == directory or folder.startswith(directory + "/"):
            own = job_path(os.path.relpath(f"{folder}/{os.path.basename(name)}", directory))
            place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.stat(own, dir_fd=place, follow_symlinks=False).st_mode):
                    return None
                if best_lock().is_held(own, place):
                    return None
                file = os.open(own, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
            finally:
                os.close(place)
            with open(file, "rb") as stream:
                return stream.read()
    return None
