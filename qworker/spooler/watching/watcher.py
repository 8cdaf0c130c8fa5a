"""Watcher: converts notifications about a spool directory to names of files to try.

Comes from:  ``inotify``; without it, only scans find files.
Goes to:     ``directory``.
Thread:      the SpoolDirectory's.

Each spooler that fails to get a lock closes a file that it has opened for writing; so does each that counts
an attempt or gives a job back. So a notification only means that a name should be checked. Changes of
attributes only matter for refused files: while there are none, they are not watched.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from qworker.spooler.files.packet import PREFIX, is_priority
from qworker.spooler.watching import inotify
from qworker.spooler.watching.inotify import Inotify

logger = logging.getLogger(__name__)

_FILES = inotify.CLOSE_WRITE | inotify.MOVED_TO
_ITSELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_HOW = inotify.ONLY_DIRECTORY | inotify.NO_LINK | inotify.NOT_UNLINKED
_LOST = inotify.OVERFLOW | inotify.IGNORED | inotify.DELETE_SELF | inotify.MOVE_SELF


class Changes(NamedTuple):
    """written: files that were written or renamed. touched: files of which only the attributes have changed.
    folders: new priorities. rescan: something was missed."""

    written: list[str]
    touched: list[str]
    folders: list[str]
    rescan: bool


NO_CHANGES = Changes([], [], [], False)


class Watcher:
    """Watches *place* and, if *ordered*, its known priorities."""

    def __init__(self, place: str, *, ordered: bool) -> None:
        self._place = place
        self._ordered = ordered
        self._folders: dict[int, str] = {}
        self._attributes = False
        try:
            self._inotify: Inotify | None = Inotify()
        except OSError as error:
            logger.warning("%s is only checked from time to time: %s", place, error)
            self._inotify = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are notifications; -1 without any."""
        return -1 if self._inotify is None else self._inotify.fileno()

    def watch(self, folder: str = "") -> None:
        """Watch *folder*, '' for the directory itself, if possible. May be repeated."""
        if self._inotify is None:
            return
        mask = _FILES | _ITSELF | _HOW
        mask |= (inotify.CREATE if self._ordered else 0) | (inotify.ATTRIB if self._attributes else 0)
        try:
            self._folders[self._inotify.add(f"{self._place}/{folder}", mask)] = folder
        except OSError as error:
            logger.warning("%s/%s is only checked from time to time: %s", self._place, folder, error)

    def watch_attributes(self, enabled: bool) -> bool:
        """Turn notifications of changed attributes on or off. Return whether this has changed anything."""
        if enabled == self._attributes:
            return False
        self._attributes = enabled
        for folder in list(self._folders.values()):
            self.watch(folder)
        return True

    def read(self) -> Changes:
        """Return the events since the last call. Never waits."""
        events = [] if self._inotify is None else self._inotify.read()
        if not events:
            return NO_CHANGES
        lost = False
        written: list[str] = []
        touched: list[str] = []
        folders: list[str] = []
        for watch, mask, name in events:
            lost = lost or bool(mask & _LOST)
            folder = self._folders.get(watch)
            if mask & inotify.IGNORED:
                self._folders.pop(watch, None)
            elif folder is None:
                continue
            elif mask & inotify.IS_DIRECTORY:
                if self._ordered and is_priority(name) and not mask & inotify.ATTRIB:
                    folders.append(_path(folder, name))
            elif name.startswith(PREFIX) and not mask & inotify.CREATE:
                (touched if mask & inotify.ATTRIB else written).append(_path(folder, name))
        return Changes(written, touched, folders, lost)

    def close(self) -> None:
        """Safe to call twice."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None


def _path(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
