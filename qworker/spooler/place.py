"""A spool directory as a place: made, or checked, before anything is written or claimed there.

Comes from:  ``writing`` and ``directory``.
Goes to:     its path without links, under which it is known from then on.
Thread:      any.
"""

from __future__ import annotations

import os
import stat

from qworker.errors import ConfigurationError


def prepared(path: str | os.PathLike[str], *, shared: bool = False) -> str:
    """The absolute path of the spool directory *path*, which is made (mode 0750) when only it is missing.

    ConfigurationError when it cannot be made or used, and when everybody may write there and remove what is
    others': whoever can write a job has it run. shared: they may.
    """
    place = os.path.realpath(path)
    try:
        os.mkdir(place, 0o750)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigurationError(
            f"the spool directory {place} cannot be made: {error.strerror}. Make it, or name another"
        ) from error
    mode = os.stat(place).st_mode
    if not stat.S_ISDIR(mode):
        raise ConfigurationError(f"{place} is no directory: name another as the spool directory")
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the spool directory {place} must be readable, writable and searchable for user {os.getuid()}"
        )
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not shared:
        raise ConfigurationError(
            f"everybody may write to the spool directory {place}, and so have code run: chmod o-w {place}"
        )
    return place
