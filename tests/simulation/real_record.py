"""real_record: files that record what ran in real processes, and tell tasks what to do.

Comes from:  the tasks of ``program``, in any process; ``real``, which writes the flows.
Goes to:     ``read()``, which makes a Record for the checks.
Thread:      any; a line is one write to a file opened with O_APPEND, so lines never mix.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qworker import QWorker
from qworker.results.result import result_from_tuple
from tests.simulation.case import Order
from tests.simulation.program import Flow, Record


class Lines:
    """A file of JSON lists, one on each line. Lines that a kill has truncated are ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *words: Any) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, f"\n{json.dumps(words)}\n".encode())
        finally:
            os.close(file)

    def __iter__(self) -> Iterator[list[Any]]:
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                if line:
                    yield json.loads(line)
            except ValueError:
                continue


class KeptRecord(Record):
    """A Record in *directory*, shared by the processes of a fleet."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.lines = Lines(directory / "record")
        self.errors = Lines(directory / "errors")

    def keep(self, name: str, order: Order) -> None:
        path = self.directory / f"{name}.flow"
        path.with_suffix(".new").write_bytes(pickle.dumps((order, self.now())))
        path.with_suffix(".new").rename(path)

    def flow(self, name: str) -> Flow | None:
        path = self.directory / f"{name}.flow"
        if name not in self._flows and path.exists():
            # Assigned only when complete: other threads read it, too.
            self._flows[name] = Flow(*pickle.loads(path.read_bytes()))
        return self._flows.get(name)

    def keeps(self, flow: str) -> bool:
        return self.keeps_all and self.of(flow).keeps

    @property
    def trouble(self) -> bool:
        """Whether a fault has happened in this case."""
        return (self.directory / "trouble").exists()

    @trouble.setter
    def trouble(self, there: bool) -> None:
        path = self.directory / "trouble"
        path.touch() if there else path.unlink(missing_ok=True)

    @contextmanager
    def running(self, flow: str, number: int, run: Any = None, delivery: Any = None) -> Iterator[None]:
        start = time.monotonic_ns()
        this = f"{os.getpid()}-{start}"
        self.lines.append("start", flow, number, this, start)
        try:
            yield
        finally:
            self.lines.append("end", flow, number, this, time.monotonic_ns())

    def tell(self, flow: str, number: int, run: Any = None) -> None:
        self.lines.append("told", flow, number)

    def call(self, flow: str, number: int, made: Any) -> None:
        if not self.of(flow).eager:  # no other process can read eager results
            self.lines.append("called", flow, number, made.as_tuple())

    def is_first(self, request: Any) -> bool:
        try:
            (self.directory / f"{request.id}.requeued").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def may_lack_expiry(self, id: str) -> bool:
        return self.trouble  # only the process that retries failed tasks knows which

    def complain(self, text: str) -> None:
        self.lines.append("wrong", text)

    def miss(self, text: str) -> None:
        self.lines.append("unseen", text)

    def read(self, app: QWorker) -> Record:
        """Return the content of the files. Interrupted runs end when they started. app: for results of calls
        made by tasks."""
        found = Record()
        ends = {line[3]: line[4] for line in self.lines if line[0] == "end"}
        for what, *words in self.lines:
            if what == "start":
                flow, number, this, start = words
                found.runs[flow].append((number, (start / 1e9, 0), (ends.get(this, start) / 1e9, 0)))
            elif what == "told":
                found.tell(*words)
            elif what == "called":
                flow, number, made = words
                found.call(flow, number, result_from_tuple(made, app))
            elif what == "wrong":
                found.complain(*words)
            elif what == "unseen":
                found.miss(*words)
        return found
