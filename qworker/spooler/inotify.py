"""Inotify: Linux tells what happens in directories.

Comes from:  the kernel, through the C library.
Goes to:     ``watching``.
Thread:      that of the SpoolDirectory.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import NamedTuple

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
"""Say nothing of files that are open and have no name any more."""
IS_DIRECTORY = 0x4000_0000

_EVENT = struct.Struct("iIII")
_ROOM = 65_536


class Event(NamedTuple):
    """watch: what add() returned; -1 for an overflow. mask: what happened. name: in the directory; '' for
    itself."""

    watch: int
    mask: int
    name: str


class Inotify:
    """OSError where the system has none, or no more for this user."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        try:
            self._add, start = library.inotify_add_watch, library.inotify_init1
        except AttributeError:
            raise OSError("this system has no inotify") from None
        self._file = _checked(start(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str, mask: int) -> int:
        """Watch the directory *path*; its number, the same as before if it was watched already."""
        return _checked(self._add(self._file, os.fsencode(path), mask))

    def read(self) -> list[Event]:
        """What has happened since the last time, in order; [] when nothing has. Never waits."""
        try:
            data = os.read(self._file, _ROOM)
        except BlockingIOError:
            return []
        events = []
        position = 0
        while position < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, position)
            position += _EVENT.size
            name = data[position : position + length].rstrip(b"\0")
            position += length
            events.append(Event(watch, mask, os.fsdecode(name)))
        return events

    def fileno(self) -> int:
        """What can be read when something has happened."""
        return self._file

    def close(self) -> None:
        os.close(self._file)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
