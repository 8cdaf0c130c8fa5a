"""Reload: notices changes of the project's Python files.

Comes from:  `qworker start --reload`.
Goes to:     a callback that stops the worker; `start` then restarts.
Thread:      its own, a daemon; it only reads file names and times. With the package watchfiles the system
             reports changes at once; without, files are checked every second.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import NoReturn

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 1.0
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
_CONFIGURATION = "pyproject.toml"

Snapshot = Mapping[str, tuple[int, int] | None]


def project_files(directory: Path) -> Iterator[str]:
    """Yield the Python files below a directory, and its pyproject.toml. Hidden, virtual and build directories
    are skipped."""
    for top, names, files in os.walk(directory):
        names[:] = [
            name
            for name in names
            if not name.startswith(".")
            and name not in _SKIPPED
            and not Path(top, name, "pyvenv.cfg").exists()
        ]
        yield from (
            os.path.join(top, file) for file in files if file.endswith(".py") or file == _CONFIGURATION
        )


def loaded_files(directory: Path) -> Iterator[str]:
    """Return files of imported modules outside of the directory and of the Python installation."""
    inside = (str(directory) + os.sep, sys.prefix + os.sep, sys.base_prefix + os.sep)
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(inside):
            yield path


def snapshot(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Return modification time and size of each existing file."""
    taken: dict[str, tuple[int, int] | None] = {}
    for path in files:
        try:
            status = os.stat(path)
        except OSError:
            continue
        taken[path] = (status.st_mtime_ns, status.st_size)
    return taken


def difference(before: Snapshot, after: Snapshot) -> list[str]:
    """Return files that were changed, added or removed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def start_again() -> NoReturn:
    """Run this program again in this process: same id, same terminal, new code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Reloader:
    """Notices changes of a directory's files since this object was created.

    Files imported from elsewhere are recorded when first seen. `changed` names the changes.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.changed = False
        self._directory = directory or Path.cwd()
        self._project = snapshot(project_files(self._directory))
        self._loaded = snapshot(loaded_files(self._directory))

    def start(self, on_change: Callable[[], object]) -> None:
        """Check in a thread, and call `on_change` once."""

        def run() -> None:
            self.wait()
            on_change()

        threading.Thread(target=run, name="reloader", daemon=True).start()

    def wait(self) -> None:
        """Return when something has changed."""
        for _ in self._ticks():
            if self.look():
                return

    def look(self) -> bool:
        """Check once; return whether something has changed since this was made."""
        loaded = snapshot(loaded_files(self._directory))
        changes = difference(self._project, snapshot(project_files(self._directory)))
        changes += difference(self._loaded, {path: loaded.get(path) for path in self._loaded})
        self._loaded = loaded | self._loaded
        if changes and not self.changed:
            self.changed = True
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            logger.warning("%s%s changed: restarting", os.path.relpath(changes[0], self._directory), more)
        return self.changed

    def _ticks(self) -> Iterator[object]:
        yield None
        try:
            watch = import_module("watchfiles").watch
            logging.getLogger("watchfiles").setLevel(
                logging.WARNING
            )  # it logs each change at INFO; we name them
        except ImportError:
            pause = threading.Event()
            while True:
                pause.wait(_SECONDS_BETWEEN_LOOKS)
                yield None
        # The timeout is for files imported from elsewhere, and for changes just before the watch began.
        yield from watch(
            self._directory, raise_interrupt=False, debounce=200, rust_timeout=2000, yield_on_timeout=True
        )
