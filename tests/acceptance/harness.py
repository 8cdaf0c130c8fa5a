"""Harness: fault tests with real workers that are observed only from outside.

A Site is a directory with a database, a ledger and the workers started there. It remembers every call sent
through it, so that invariants.py can check afterwards whether all guarantees were kept. Nothing here
sleeps for a number of seconds: ``until`` waits for a condition, and fails with the workers' logs.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from qworker import QWorker
from tests.acceptance import ledger
from tests.acceptance.ledger import ENDED, STARTED, Record
from tests.acceptance.processes import children, command_of, descendants, kill, state
from tests.support import waiting

REPOSITORY = Path(__file__).resolve().parents[2]
TASKS = "tests.acceptance.fault_tasks:app"
PATIENCE = 40.0
"""Seconds that a condition may take on a busy machine. What must be fast is asserted from the ledger."""

READY = re.compile(r"ready; broker|\] ready$", re.MULTILINE)

T = TypeVar("T")


class WorkerProcess:
    """One ``qworker start``, or another *command*. options: further command line arguments. settings: for
    the environment, as QWORKER_*."""

    def __init__(
        self,
        site: Site,
        *options: str,
        name: str = "one",
        app: str = TASKS,
        command: Sequence[str] = ("start",),
        environment: dict[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        wrapper: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self.name = name
        self.log_path = site.path / f"{name}.{len(site.workers)}.log"
        words = [
            *wrapper,
            sys.executable,
            "-m",
            "qworker",
            *command,
            "-A",
            app,
            "-n",
            f"{name}@test",
            *options,
        ]
        if command == ("start",) and not {"-c", "--concurrency"} & set(options):
            words += ["-c", "2"]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=site.path,
                env={**site.environment(**settings), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log if stderr is None else stderr,
            )
        self.pid = self.process.pid
        self.seen: set[int] = set()

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_ready(self) -> WorkerProcess:
        until(
            lambda: READY.search(self.log) or self.process.poll() is not None,
            f"{self.name} to be ready",
            self,
        )
        assert self.alive, f"the worker ended at its start:\n{self.log}"
        return self

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def keeper(self) -> int:
        """The id of the process that forks the zygote."""
        (pid,) = children(self.pid)
        self.seen.add(pid)
        return pid

    def zygote(self) -> int:
        """The id of the zygote, which forks the pool's processes."""
        (pid,) = children(self.keeper())
        self.seen.add(pid)
        return pid

    def pool(self) -> list[int]:
        """The ids of the pool's processes, without zombies."""
        found = [
            pid
            for keeper in children(self.pid)
            for zygote in children(keeper)
            for pid in children(zygote)
            if state(pid) not in "ZX"
        ]
        self.seen.update(found)
        return found

    def wait_pool(self, size: int = 2) -> list[int]:
        return until(lambda: pool if len(pool := self.pool()) == size else None, f"{size} processes", self)

    def tree(self) -> list[int]:
        return [self.pid, *descendants(self.pid)]

    def cpu_seconds(self) -> float:
        """CPU time of the main process."""
        with open(f"/proc/{self.pid}/stat") as file:
            user, system = file.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9 of the main process only; returns when it is dead."""
        self.seen.update(descendants(self.pid))
        self.process.kill()
        self.process.wait(PATIENCE)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code, once the worker has ended by itself."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds} s:\n{self.log}") from None

    def stop(self, code: int = 0) -> None:
        """SIGTERM; checks the exit code."""
        self.seen.update(descendants(self.pid))
        self.process.terminate()
        assert self.wait() == code, self.log

    def end(self) -> None:
        """Kill everything that is left of it."""
        left = self.seen.union(descendants(self.pid)) if self.alive else self.seen
        if self.alive:
            self.process.kill()
            self.process.wait(PATIENCE)
        for pid in left:
            if command_of(pid):
                kill(pid)


class Site:
    """path: an empty directory. broker: its URL; None: a file, *database* or one in *path*. settings: of
    all workers here and of the client. Methods that query the database are for the file only; see
    brokers.py for servers."""

    def __init__(
        self, path: Path, database: Path | None = None, broker: str | None = None, **settings: object
    ) -> None:
        self.path = path
        self.database = database or path / "broker.db"
        self.settings = settings
        self.ledger_path = path / "ledger"
        self.workers: list[WorkerProcess] = []
        self.url = broker or f"sqlite:///{self.database}"
        self.client = QWorker("client", broker=self.url, set_as_current=False, **settings)
        self.sent: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        """id → (task, arguments, options) of every call that was accepted."""
        self.due: dict[str, float] = {}
        """id → epoch second before which the task must not start."""
        self.unsure: dict[str, str] = {}
        """id → task of every call that raised an error and may have been accepted."""

    def environment(self, **settings: object) -> dict[str, str]:
        given = {name: str(value) for name, value in {**self.settings, **settings}.items()}
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONIOENCODING": "utf-8",
            "LEDGER": str(self.ledger_path),
            "QWORKER_BROKER_URL": self.url,
            **{f"QWORKER_{name.upper()}": value for name, value in given.items()},
        }

    # -- acting --

    def start(self, *options: str, ready: bool = True, **more: Any) -> WorkerProcess:
        worker = WorkerProcess(self, *options, **more)
        self.workers.append(worker)
        return worker.wait_ready() if ready else worker

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Call *task*; return the id of the accepted call."""
        now = time.time()
        id = self.client.send_task(task, args, **options).id
        self.sent[id] = (task, args, options)
        if "countdown" in options:
            self.due[id] = now + options["countdown"]
        return id

    def send_many(self, task: str, arguments: Sequence[tuple[Any, ...]], **options: Any) -> list[str]:
        results = self.client.send_many([(task, args) for args in arguments], **options)
        for result, args in zip(results, arguments, strict=True):
            self.sent[result.id] = (task, args, options)
        return [result.id for result in results]

    def insert(
        self,
        headers: object,
        properties: object = None,
        body: object = b"[[], {}, {}]",
        queue: str = "celery",
    ) -> None:
        """Insert a message into the database directly."""
        with closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            connection.execute(
                # SQLite only stores str as text, but text can contain any bytes.
                "INSERT INTO message (queue, sent, headers, properties, body) "
                "VALUES (?, ?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS BLOB))",
                (queue, time.time(), headers, properties, body),
            )

    # -- looking --

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database, timeout=30)) as connection:
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            return connection.execute(sql, values).fetchall()

    def records(self, id: str | None = None, kind: str | None = None) -> list[Record]:
        return [
            record
            for record in ledger.read(self.ledger_path)
            if (id is None or record.id == id) and (kind is None or record.kind == kind)
        ]

    def states(self) -> dict[str, str]:
        """task id → stored state."""
        return dict(self.query("SELECT task_id, status FROM result"))

    def state(self, id: str) -> str | None:
        return self.states().get(id)

    def error(self, id: str) -> BaseException:
        """The stored exception of a failed task."""
        error = self.client.AsyncResult(id).result
        assert isinstance(error, BaseException), error
        return error

    def dead(self) -> dict[str, str]:
        """Reasons of the dead letters, by task id (by tag if the headers cannot be read)."""
        import json

        found = {}
        for tag, reason, headers in self.query("SELECT tag, reason, headers FROM dead"):
            try:
                key = json.loads(headers)["id"]
            except (ValueError, KeyError, TypeError, RecursionError):
                key = str(tag)
            found[str(key)] = reason
        return found

    def left(self) -> list[str]:
        """What is left in the database after everything has ended and every worker has stopped."""
        messages = [f"message {row}" for row in self.query("SELECT * FROM message")]
        owners = [f"owner {name}" for (name,) in self.query("SELECT name FROM owner")]
        files = [path.name for path in self.database.parent.glob(f"{self.database.name}-owners/*")]
        return messages + owners + files

    def waiting(self) -> int:
        """The number of messages in the database, in all states."""
        return int(self.query("SELECT count(*) FROM message")[0][0])

    # -- waiting --

    def until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        return until(condition, what, *self.workers, seconds=seconds)

    def drained(self, seconds: float = PATIENCE) -> None:
        """Wait until every message has been settled."""
        self.until(lambda: self.waiting() == 0, "the queue to be empty", seconds)

    def started(self, *ids: str, times: int = 1) -> list[Record]:
        """Wait until each of *ids* was started so many times; return the newest start of each."""

        def newest() -> list[Record] | None:
            starts = {id: self.records(id, STARTED) for id in ids}
            return (
                [found[-1] for found in starts.values()]
                if all(len(found) >= times for found in starts.values())
                else None
            )

        return self.until(newest, f"{len(ids)} tasks to start {times} times")

    def ended(self, *ids: str) -> None:
        self.until(
            lambda: set(ids) <= {record.id for record in self.records(kind=ENDED)}, f"{len(ids)} tasks to end"
        )

    def finished(self, *ids: str) -> None:
        """Wait until each of *ids* has a terminal state."""
        self.until(
            lambda: all(self.states().get(id) in ("SUCCESS", "FAILURE", "REVOKED") for id in ids),
            f"{len(ids)} results",
        )

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.client.close()


@contextmanager
def opened(path: Path, **settings: object) -> Iterator[Site]:
    site = Site(path, **settings)
    try:
        yield site
    finally:
        site.close()


def until(condition: Callable[[], T], what: str, *workers: WorkerProcess, seconds: float = PATIENCE) -> T:
    """Wait until *condition* returns something true, and return that; fail with the workers' logs after
    *seconds*."""

    def say() -> str:
        logs = "\n".join(f"--- {worker.log_path.name}\n{worker.log[-6000:]}" for worker in workers)
        return f"for {what}\n{logs}"

    return waiting.until(condition, seconds, say)
