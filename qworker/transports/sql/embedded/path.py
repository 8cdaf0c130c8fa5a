"""The path of the file, and whether it is allowed.

Comes from:  ``broker_url`` or ``result_backend``.
Goes to:     ``database.py``, the command line.
Thread:      any.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote

from qworker.errors import ConfigurationError

DEFAULT_PATH = ".qworker/qworker.db"

NETWORK_FILE_SYSTEMS = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb",
            "smb2",
            "smb3",
            "smbfs",
            "afs",
            "ceph",
            "glusterfs",
            "lustre",
            "beegfs",
        ),
        *("fuse.sshfs", "fuse.s3fs", "fuse.glusterfs"),
    }
)

_ESCAPED = re.compile(r"\\([0-7]{3})")


def database_path(url: str | None) -> Path:
    """Return the absolute path that *url* names: ``sqlite:///relative``, ``sqlite:////absolute`` or None.

    Raises ConfigurationError for another scheme, a host or parameters in the URL.
    """
    bare = url or ""
    if "?" in bare:
        raise ConfigurationError(
            f"{url!r}: sqlite:// has no parameters; remove everything from the question mark on, or write "
            "%3F for a question mark in the path",
            setting="broker_url",
        )
    if bare in ("", "sqlite:", "sqlite://", "sqlite:///"):
        return Path(DEFAULT_PATH).absolute()
    scheme, separator, rest = bare.partition("://")
    if scheme != "sqlite" or not separator or not rest.startswith("/"):
        raise ConfigurationError(
            f"{url!r} does not name an SQLite file: write sqlite:///relative/path.db or sqlite:////absolute/path.db",
            setting="broker_url",
        )
    return Path(unquote(rest[1:])).absolute()


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """Return the type of the file system that holds *path* (``ext4``, ``nfs4``…), '' if unknown."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return ""
    wanted, best, found = os.path.realpath(path), -1, ""
    for line in mountinfo.splitlines():
        fields, _, source = line.partition(" - ")
        if fields.count(" ") < 4 or not source:
            continue
        mount = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields.split()[4])
        inside = wanted == mount or wanted.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:
            best, found = len(mount), source.split()[0]
    return found
