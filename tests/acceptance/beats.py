"""Beats: ``qworker beat`` processes, observed only from outside, and the runs of their entries.

Comes from:  the fault tests of schedules.
Goes to:     ``qworker beat``, started on a Site; the file that the task ``periodic`` of fault_tasks.py
             writes.
Thread:      the test's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import datetime
from typing import NamedTuple

from tests.acceptance.harness import TASKS, Site


class Run(NamedTuple):
    """late: seconds after the due time."""

    name: str
    due: datetime
    id: str
    tag: int
    late: float


def runs(site: Site) -> list[Run]:
    """The runs that calls of entries have recorded, in order."""
    path = site.path / "periodic"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        name, due, id, tag, late = line.split()
        found.append(Run(name, datetime.fromisoformat(due), id, int(tag), float(late)))
    return found


class BeatProcess:
    """One ``qworker beat`` of *site*. environment: only for this process. settings: for the environment,
    as QWORKER_*."""

    def __init__(
        self,
        site: Site,
        number: int,
        crash_at: str = "",
        environment: dict[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.log_path = site.path / f"beat.{number}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "qworker", "beat", "-A", TASKS],
                cwd=site.path,
                env={
                    **site.environment(**settings),
                    "QWORKER_CRASH_AT": crash_at,
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def leads(self) -> bool:
        """Whether its last log line about leadership says that it leads."""
        told = [line for line in self.log.splitlines() if "leader of the schedulers" in line]
        return bool(told) and "] this process is now the leader of the schedulers" in told[-1]

    @property
    def follows(self) -> bool:
        """Whether it is on standby."""
        return "is the leader of the schedulers; this one waits" in self.log

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def end(self) -> int:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()


class Beats:
    """The scheduler processes of *site*."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._count = 0
        self.running: list[BeatProcess] = []

    def start(
        self, crash_at: str = "", environment: dict[str, str] | None = None, **settings: object
    ) -> BeatProcess:
        self._count += 1
        self.running.append(BeatProcess(self._site, self._count, crash_at, environment, **settings))
        return self.running[-1]

    def leader(self) -> BeatProcess:
        found: BeatProcess = self._site.until(
            lambda: next((each for each in self.running if each.leads), None), "one to lead"
        )
        return found

    def all_wait(self) -> bool:
        """Whether all except the leader are on standby."""
        return all(each.follows or each.leads for each in self.running)

    def kill(self, each: BeatProcess) -> None:
        self.running.remove(each)
        each.kill()

    def close(self) -> None:
        for each in self.running:
            each.end()
        self.running.clear()
