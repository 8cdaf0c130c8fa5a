"""Another process on the same place, which runs a function of ``scripts``.

Comes from:  the fixture ``other``.
Goes to:     a new interpreter that runs this module and creates the place; both exchange lines of text.
Thread:      the test's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getfile
from pathlib import Path
from types import ModuleType

from qworker.testing.contract import scripts
from qworker.testing.contract.place import Place
from qworker.testing.contract.scripts import Script
from qworker.testing.contract.waiting import PATIENCE


class Other:
    """The process, as seen by the test."""

    def __init__(self, kind: type[Place], directory: Path, script: Script) -> None:
        command = [kind.__module__, getfile(kind), kind.__qualname__, str(directory), script.__name__]
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import run; run()", *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, line: str) -> None:
        """Send *line*, which must not be empty: an empty line ends the reader."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Return the next line; "" once the process has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._process.kill()
        self._process.wait()

    def ended(self) -> int:
        """Wait until the process ends by itself; return its exit code."""
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        """Kill the process, if it is running."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def run() -> None:
    """Run the script named on the command line. Called in the other process."""
    module, file, kind, directory, script = sys.argv[1:]
    found: object = _imported(module, file)
    for name in kind.split("."):
        found = getattr(found, name)
    assert isinstance(found, type)
    assert issubclass(found, Place)
    getattr(scripts, script)(found(Path(directory)))


def _imported(module: str, file: str) -> ModuleType:
    """Return the module of a place. Test modules are loaded from *file*, because pytest imports them under
    private names."""
    try:
        return import_module(module)
    except ImportError:
        spec = spec_from_file_location(module, file)
        if spec is None or spec.loader is None:
            raise
        sys.modules[module] = loaded = module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded
