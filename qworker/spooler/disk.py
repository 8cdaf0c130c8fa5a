"""The disk: files and names that must be there after the power was lost.

Comes from:  ``writing``.
Goes to:     fsync(), and for many files syncfs(): one wait for the disk instead of one for each.
Thread:      any.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

FEW = 2
"""So many files are synced one by one: syncfs() waits for what others have written there, too."""


def sync(path: str) -> None:
    """Return when the file or directory *path* is on the disk."""
    _with_open(path, os.fsync)


def sync_all(paths: Sequence[str]) -> None:
    """Return when all these files, which are on one file system, are on the disk."""
    syncfs = _syncfs() if len(paths) > FEW else None
    if syncfs is not None:
        _with_open(paths[0], syncfs)
    else:
        for path in paths:
            sync(path)


def _with_open(path: str, call: Callable[[int], object]) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        call(file)
    finally:
        os.close(file)


@cache
def _syncfs() -> Callable[[int], None] | None:
    """The system call of that name; None where there is none."""
    import ctypes  # which only who writes many jobs durably needs

    try:
        call = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None

    def syncfs(file: int) -> None:
        if call(file) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return syncfs
