"""Fleet: real workers of Celery and of qworker in one directory, with a ledger of the tasks that ran.

Comes from:  the compat tests, each of which adds its broker and its tasks.
Goes to:     subprocesses; their tasks append to one file that the test reads.
Thread:      the test's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE = 60.0

# Precedes the tasks of an app module that defines BY, the library whose worker runs them.
LEDGER = """
import json, os, time

def note(**fields):
    line = json.dumps({"by": BY, "pid": os.getpid(), "at": time.time(), **fields})
    file = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"\\n{line} .\\n".encode())
    os.close(file)
"""


ALONE = ("-P", "solo", "--without-mingle", "--without-gossip")
"""A Celery worker that does not contact other workers."""


class Fleet:
    """The processes started in *path*; subclasses define the apps of the workers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._processes: list[subprocess.Popen[bytes]] = []

    def write(self, tasks: str, **heads: str) -> None:
        """Write the modules their_app and our_app: a head each, which creates the app, and *tasks*."""
        for name, head in heads.items():
            (self.path / f"{name}.py").write_text(head + LEDGER + tasks)

    def our_worker(self, *options: str) -> subprocess.Popen[bytes]:
        """A worker of our_app, with two processes unless *options* are given."""
        return self.start("qworker", "start", "-A", "our_app:app", *(options or ("-c", "2")))

    def their_worker(self, *options: str, name: str = "theirs") -> subprocess.Popen[bytes]:
        """A Celery worker of their_app, without a pool unless *options* are given."""
        return self.start(
            "celery", "-A", "their_app", "worker", "-l", "INFO", "-n", f"{name}@test",
            *(options or ("-P", "solo")),
        )  # fmt: skip

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start `python -m *command*`, with its own log file."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.path}{os.pathsep}{REPOSITORY}",
            "PYTHONWARNINGS": "ignore",
        }
        with (self.path / f"{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command], cwd=self.path, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def ledger(self, task: str | None = None) -> list[dict[str, Any]]:
        """Ledger entries, oldest first: of *task* or all; an incomplete line is left for later."""
        try:
            lines = (self.path / "ledger").read_text().splitlines()
        except FileNotFoundError:
            return []
        whole = [json.loads(line.removesuffix(" .")) for line in lines if line.endswith(" .")]
        return [entry for entry in whole if task in (None, entry["task"])]

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until *condition* returns something true, and return that; fail if a process ended by
        itself."""
        deadline = time.monotonic() + PATIENCE
        while not (answer := condition()):
            ended = [each.args for each in self._processes if each.poll() not in (None, 0, -signal.SIGKILL)]
            assert not ended, f"{ended} ended\n{self.logs()}"
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s\n{self.logs()}"
            time.sleep(0.01)
        return answer

    def logs(self) -> str:
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')}" for path in sorted(self.path.glob("*.log"))
        )

    def kill(self, *processes: subprocess.Popen[bytes]) -> None:
        """Kill -9 *processes* (all processes of the fleet by default) and their process groups."""
        for process in processes or self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
