"""Preparing a spool directory: it is created or checked before anything is written or claimed there.

Comes from:  ``writing`` and ``directory``; ``administration``, which creates none.
Goes to:     its path without links, which is used from then on.
Thread:      any.
"""

from __future__ import annotations

import logging
import os
import stat

from qworker.errors import ConfigurationError
from qworker.safe_repr import safe_repr
from qworker.spooler.files.packet import PREFIX, is_priority

logger = logging.getLogger(__name__)


def prepared(path: str | os.PathLike[str], *, shared: bool = False) -> str:
    """Return the absolute path of the spool directory *path*, which is created (mode 0750) if its parent
    exists.

    ConfigurationError when it cannot be created or used, and when everybody may write to it and remove the
    files of others: whoever writes a job can run code. shared: this is allowed.
    """
    place = os.path.realpath(path)
    try:
        os.mkdir(place, 0o750)
        logger.warning("created the missing spool directory %s", place)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"the spool directory {place} cannot be created: {error.strerror}. Create it, or name another"
        ) from error
    mode = os.stat(place).st_mode
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{place} is not a directory: name another as the spool directory")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the spool directory {place} must be readable, writable and searchable for user {os.getuid()}"
        )
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not shared:
        raise ConfigurationError(
            f"everybody may write to the spool directory {place}, and so run code: chmod o-w {place}"
        )
    return place


def existing(path: str | os.PathLike[str], *, writable: bool = True) -> str:
    """Return the absolute path of the existing spool directory *path*, to be inspected or changed.

    ConfigurationError when it does not exist or may not be used, and when it contains only foreign files: it
    is probably not the intended directory.
    """
    try:
        place = os.path.realpath(path)
        mode = os.stat(place).st_mode
    except (OSError, ValueError) as error:  # a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"the spool directory {safe_repr(os.fspath(path))} cannot be opened: {reason}. Name an existing "
            "one"
        ) from None
    shown = safe_repr(place)
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{shown} is not a directory: name the directory that has the spool files")
    needed, words = (os.R_OK | os.X_OK, "read") if not writable else (os.R_OK | os.W_OK | os.X_OK, "change")
    if not os.access(place, needed):
        raise ConfigurationError(
            f"user {os.getuid()} may not {words} the spool directory {shown}: do this as its spooler's user"
        )
    if _holds_only_others(place):
        raise ConfigurationError(
            f"{shown} contains other files and no spool files: name the spool directory itself"
        )
    return place


def _holds_only_others(place: str) -> bool:
    """Return whether there are files and none is a spooler's. A spool directory may be empty, or have hidden
    files."""
    others = False
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith((PREFIX, ".qw-")) or is_priority(entry.name):
                return False
            others = others or not entry.name.startswith(".")
    return others
