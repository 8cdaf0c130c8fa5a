"""Inotify: Linux's notifications of changes in directories.

Comes from:  the kernel, through the C library.
Goes to:     ``watcher``; ``administration/counts.py``.
Thread:      the user's.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import TypeAlias

ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLY_DIRECTORY = 0x0100_0000
NO_LINK = 0x0200_0000
NOT_UNLINKED = 0x0400_0000
"""No events about open files that have no name any more."""
IS_DIRECTORY = 0x4000_0000

_EVENT = struct.Struct("iIII")
_ROOM = 65_536
_NAMES = (sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


Event: TypeAlias = "tuple[int, int, str]"
"""The watch that add() returned, -1 for an overflow; a mask, for what happened; a name in the directory, ''
for the directory itself."""


class Inotify:
    """OSError if the system does not support it, or this user has too many instances."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, start = library.inotify_add_watch, library.inotify_init1
        except AttributeError:
            raise OSError("this system has no inotify") from None
        self._file = _checked(start(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str, mask: int) -> int:
        """Watch the directory *path*; return its watch, the same as before if it was watched already."""
        return _checked(self._add(self._file, os.fsencode(path), mask))

    def read(self) -> list[Event]:
        """Return the events since the last call, in order; [] when there are none. Never waits."""
        try:
            data = os.read(self._file, _ROOM)
        except BlockingIOError:
            return []
        events: list[Event] = []
        begin, size = 0, len(data)
        unpack, add, head = _EVENT.unpack_from, events.append, _EVENT.size
        while begin < size:
            watch, mask, _, length = unpack(data, begin)
            begin += head
            name = data[begin : begin + length].rstrip(b"\0")
            begin += length
            add((watch, mask, name.decode(*_NAMES)))
        return events

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are events."""
        return self._file

    def close(self) -> None:
        os.close(self._file)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
