"""Reload: notices that a Python file of the project changed.

Comes from:  `qworker start --reload`.
Goes to:     a call-back that stops the worker; `start` then begins again.
Thread:      its own, a daemon; it reads file names and times and touches nothing else. With the extra package
             watchfiles the system tells of changes at once; without, times are looked at every second.
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
    """Yield the Python files below a directory, and its pyproject.toml. Hidden, virtual and built directories
    are left out."""
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
    """Files of imported modules that lie outside of the directory and outside of the Python installation."""
    inside = (str(directory) + os.sep, sys.prefix + os.sep, sys.base_prefix + os.sep)
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(inside):
            yield path


def snapshot(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Time of change and size of each file that exists."""
    taken: dict[str, tuple[int, int] | None] = {}
    for path in files:
        try:
            status = os.stat(path)
        except OSError:
            continue
        taken[path] = (status.st_mtime_ns, status.st_size)
    return taken


def difference(before: Snapshot, after: Snapshot) -> list[str]:
    """Files that changed, came or went."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def start_again() -> NoReturn:
    """Runs this program from the top, in this process: same id, same terminal, fresh code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class Reloader:
    """Remembers what the files of a directory are when it is made, and notices when one of them changes.

    What is imported from elsewhere is remembered from when it is first seen. `changed` says what was noticed.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self.changed = False
        self._directory = directory or Path.cwd()
        self._project = snapshot(project_files(self._directory))
        self._loaded = snapshot(loaded_files(self._directory))

    def start(self, on_change: Callable[[], object]) -> None:
        """Looks from a thread, and calls `on_change` once."""

        def run() -> None:
            self.wait()
            on_change()

        threading.Thread(target=run, name="reloader", daemon=True).start()

    def wait(self) -> None:
        """Returns when something has changed."""
        for _ in self._ticks():
            if self.look():
                return

    def look(self) -> bool:
        """Looks once; whether something has changed since this was made."""
        loaded = snapshot(loaded_files(self._directory))
        changes = difference(self._project, snapshot(project_files(self._directory)))
        changes += difference(self._loaded, {path: loaded.get(path) for path in self._loaded})
        self._loaded = loaded | self._loaded
        if changes and not self.changed:
            self.changed = True
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            logger.warning("%s%s changed: starting again", os.path.relpath(changes[0], self._directory), more)
        return self.changed

    def _ticks(self) -> Iterator[object]:
        yield None
        try:
            watch = import_module("watchfiles").watch
            logging.getLogger("watchfiles").setLevel(
                logging.WARNING
            )  # it counts each change at INFO; we name them
        except ImportError:
            pause = threading.Event()
            while True:
                pause.wait(_SECONDS_BETWEEN_LOOKS)
                yield None
        # The time-out is for what is imported from elsewhere, and for a change made just before the watch
        # began.
        yield from watch(
            self._directory, raise_interrupt=False, debounce=200, rust_timeout=2000, yield_on_timeout=True
        )
