"""One cell of the table: one peer doing one workload once, in a directory and with processes of its own.

A cell starts clean and leaves nothing: its directory, its producer and every process of its worker are gone
when the `with` block ends, whatever happened inside.
"""

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import environments, records
from benchmarks.peer import Peer
from benchmarks.processes import Tree

MEMORY = Path("/dev/shm")
ROOT = Path(__file__).resolve().parent.parent
CONCURRENCY = 2
"""Processes of every worker, unless it is their number that is measured."""


class CellError(Exception):
    """The peer could not do this workload; the message says what it said. The run goes on with the next
    cell."""


class Cell:
    """What a workload works with: send commands to the producer, start the worker, read the records.

    `scale` multiplies counts and durations; `environment` is added to what the peer's processes see. `lost`,
    `repeated` and `tasks` add up over the cell.
    """

    def __init__(
        self,
        peer: Peer,
        workload: str,
        scale: float,
        runs: Path,
        concurrency: int = CONCURRENCY,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.peer = peer
        self.workload = workload
        self.scale = scale
        self.concurrency = concurrency
        self.extra = dict(environment or {})
        self.tasks = self.lost = self.repeated = 0
        runs.mkdir(parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix=f"{peer.name}-{workload}-", dir=runs))
        memory = MEMORY if MEMORY.is_dir() else self.directory
        self.records = Path(tempfile.mkdtemp(prefix="benchmark-", dir=memory)) / "records"
        self.tree: Tree | None = None
        self._producer: subprocess.Popen[str] | None = None
        self._next = 0

    def __enter__(self) -> "Cell":
        try:
            self.ask("prepare")
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tree is not None:
            self.tree.kill()
        try:
            if kind is None or issubclass(kind, CellError):
                self.ask("finish", timeout=20.0)
        except CellError:
            pass  # The next `prepare` clears what is left.
        finally:
            self._leave()

    def _leave(self) -> None:
        if self.tree is not None:
            self.tree.kill()
        self.dismiss_producer()
        shutil.rmtree(self.records.parent, ignore_errors=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **self.peer.environment,
            **self.extra,
            "PYTHONPATH": str(ROOT),
            # Compiled code is kept, wherever it is switched off: pip has compiled the peers, and nobody us.
            "PYTHONDONTWRITEBYTECODE": "",
            "BENCHMARK_WORKLOAD": self.workload,
            "BENCHMARK_DIRECTORY": str(self.directory),
            "BENCHMARK_RECORDS": str(self.records),
        }

    # --- sizes

    def count(self, full: int, least: int = 20) -> int:
        """How many tasks to use where the whole benchmark uses `full`."""
        return min(self.peer.most.get(self.workload, full), max(least, round(full * self.scale)))

    def seconds(self, full: float, least: float = 2.0) -> float:
        """How long to do what the whole benchmark does for `full` seconds."""
        return max(least, full * self.scale)

    def reserve(self, count: int) -> int:
        """The first of `count` task numbers that nothing else in this cell uses."""
        base = self._next
        self._next += count
        return base

    # --- the producer

    def ask(self, do: str, timeout: float = 300.0, **request: Any) -> dict[str, Any]:
        """Have the producer do something and wait for its answer. Raises CellError with what went wrong."""
        if self._producer is None:
            self._producer = self._start_producer()
        producer = self._producer
        assert producer.stdin is not None
        assert producer.stdout is not None
        try:
            producer.stdin.write(json.dumps({"do": do, **request}) + "\n")
            producer.stdin.flush()
        except BrokenPipeError:
            raise CellError(f"the producer ended:\n{self._tail('producer.log')}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(producer.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise CellError(f"the producer did not finish {do} within {timeout:.0f} s")
        line = producer.stdout.readline()
        if not line:
            raise CellError(f"the producer ended:\n{self._tail('producer.log')}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CellError(f"{do}: {answer['error']}")
        return answer

    def dismiss_producer(self) -> None:
        """End the producer, so that it shares no memory with a worker that is weighed; the next `ask` starts
        another."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer.kill()
        producer.wait()
        for pipe in (producer.stdin, producer.stdout):
            if pipe is not None:
                pipe.close()

    def _start_producer(self) -> subprocess.Popen[str]:
        with (self.directory / "producer.log").open("w") as log:
            return subprocess.Popen(
                [str(environments.interpreter(self.peer)), "-m", "benchmarks.producer", self.peer.adapter],
                env=self._environment(),
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    # --- the worker

    def start_worker(self, *words: str) -> Tree:
        """Start the peer's worker, with more *words* to its command; it may need a moment before it takes
        tasks."""
        names = {"python": str(environments.interpreter(self.peer)), "concurrency": str(self.concurrency)}
        names["bin"] = str(Path(names["python"]).parent)
        command = [*(part.format(**names) for part in self.peer.command), *words]
        self.tree = Tree(command, self._environment(), self.directory)
        return self.tree

    def warm_worker(self, tasks: int = 40) -> Tree:
        """Start the worker, run some tasks through it, and return when they are done."""
        tree = self.start_worker()
        base = self.reserve(tasks)
        self.ask("fill", task="noop", base=base, count=tasks, extra=[], batch=0, limit=30.0)
        self.await_ended(base, tasks)
        return tree

    def await_ended(
        self,
        base: int,
        count: int,
        quiet: float = 10.0,
        limit: float = 120.0,
        settle: float = 0.2,
        tolerate: bool = False,
    ) -> list[records.Record]:
        """Wait until tasks `base`... have run, and a moment longer to catch repeats; count losses and
        repeats.

        Gives up after `limit` seconds, or `quiet` seconds without a new record. Raises CellError when none
        ran, unless that is to be tolerated.
        """
        began = changed = time.monotonic()
        seen = -1
        found: list[records.Record] = []
        while True:
            now = time.monotonic()
            number = records.count(self.records)
            if number != seen:
                seen, changed = number, now
                # Parsing is left for the end: a big file is not read again and again.
                if number >= count and len(self._distinct(base, count)) >= count:
                    break
            if now - changed > quiet or now - began > limit:
                break
            if self.tree is not None and not self.tree.alive():
                break
            time.sleep(0.05)
        time.sleep(settle)
        found = records.ended(records.read(self.records), base, count)
        tally = records.tally(found, count)
        self.tasks += count
        self.lost += tally.lost
        self.repeated += tally.repeated
        if not found and not tolerate:
            state = "is running" if self.tree is not None and self.tree.alive() else "has ended"
            raise CellError(f"no task ran; the worker {state}:\n{self._tail('worker.log')}")
        return found

    def _distinct(self, base: int, count: int) -> set[int]:
        return {record.task for record in records.ended(records.read(self.records), base, count)}

    def _tail(self, name: str) -> str:
        try:
            lines = (self.directory / name).read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "(it said nothing)"
        return "\n".join(lines[-8:]) or "(it said nothing)"
