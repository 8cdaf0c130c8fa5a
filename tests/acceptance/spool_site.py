"""SpoolSite: a Site with a spool directory and workers for it, observed only from outside.

Comes from:  the fault tests of the spooler. Goes to: harness.py, spool_jobs.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qworker.spooler.files.attempts import ATTRIBUTE
from qworker.spooler.files.packet import DEAD, PREFIX
from qworker.spooler.files.writing import NewJob, Writer
from tests.acceptance.harness import Site, WorkerProcess
from tests.acceptance.ledger import ENDED, STARTED

JOBS = "tests.acceptance.spool_jobs:app"


class SpoolSite(Site):
    """place: the spool directory."""

    def __init__(self, path: Path, **more: Any) -> None:
        super().__init__(path, **more)
        self.place = path / "spool"
        self.writer = Writer(self.place)

    def work(self, *options: str, **more: Any) -> WorkerProcess:
        """``qworker spool run`` with two processes and a short backoff."""
        return self.start(
            str(self.place),
            "--spooler-processes=2",
            "--spooler-backoff=0.05",
            *options,
            command=("spool", "run"),
            app=JOBS,
            **more,
        )

    def beside(self, *options: str, **more: Any) -> WorkerProcess:
        """``qworker start --spooler``, with two processes."""
        return self.start(f"--spooler={self.place}", "--spooler-backoff=0.05", *options, app=JOBS, **more)

    def job(self, id: object, do: str = "", **pairs: Any) -> str:
        """Write a job; returns the name of its file."""
        return Path(self.writer.write({"id": str(id), "do": do, **pairs})).name

    def jobs(self, ids: Iterable[object], **pairs: Any) -> None:
        self.writer.write_many([NewJob({"id": str(id), **pairs}) for id in ids])

    def run(self, *command: str) -> str:
        """The output of a ``qworker`` command."""
        ended = subprocess.run(
            [sys.executable, "-m", "qworker", *command],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def runs(self, kind: str = ENDED) -> Counter[str]:
        """id → how often it has ended (or started)."""
        return Counter(record.id for record in self.records(kind=kind))

    def begun(self, *ids: object) -> None:
        wanted = {str(id) for id in ids}
        self.until(lambda: wanted <= set(self.runs(STARTED)), f"{len(wanted)} jobs to be begun")

    def files(self) -> list[str]:
        """The names of the job files."""
        return sorted(path.name for path in self.place.glob(f"{PREFIX}*"))

    def empty(self, seconds: float = 40.0) -> None:
        """Wait until there are no jobs."""
        self.until(lambda: not self.files(), "the directory to be empty", seconds)

    def attempts(self, name: str) -> int:
        try:
            return int(os.getxattr(self.place / name, ATTRIBUTE))
        except OSError:
            return 0

    def aside(self) -> dict[str, dict[str, Any]]:
        """The notes of dead jobs, by the name of their file."""
        return {
            path.name.removesuffix(".json"): json.loads(path.read_text())
            for path in (self.place / DEAD).glob(f"{PREFIX}*.json")
            if path.with_suffix("").exists()  # the note is written before the job is moved
        }
