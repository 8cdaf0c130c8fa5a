"""A Django project for fault tests: its own database, clusters, and a process that calls tasks.

Comes from:  tests of qworker.django, which run on each kind of database.
Goes to:     ``manage.py qcluster``, observed only from outside; the ledger that tasks write.
Thread:      the test's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance import ledger
from tests.acceptance.harness import PATIENCE, REPOSITORY, T, WorkerProcess, until
from tests.acceptance.ledger import ENDED, STARTED
from tests.support.django_databases import ProjectDatabase

TASKS = "tests.acceptance.django_tasks"


class ClusterProcess(WorkerProcess):
    """One ``manage.py qcluster``. settings: Django settings in addition to the site's."""

    def __init__(self, site: DjangoSite, name: str, *options: str, **settings: object) -> None:
        self.name = name
        self.log_path = site.path / f"{name}.{len(site.clusters)}.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "qcluster", *options],
                cwd=site.path,
                env=site.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self.process.pid
        self.seen: set[int] = set()

    def wait_ready(self) -> ClusterProcess:
        until(
            lambda: "running." in self.log or self.process.poll() is not None,
            f"{self.name} to be ready",
            self,
        )
        assert self.alive, f"the cluster ended at its start:\n{self.log}"
        return self


class DjangoSite:
    """path: an empty directory. database: migrated and empty. cluster: keys of Q_CLUSTER. settings: Django
    settings.

    Calls are identified by the key that is their first argument.
    """

    def __init__(
        self,
        path: Path,
        database: ProjectDatabase,
        cluster: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.path = path
        self.database = database
        self.kind = database.kind
        self.ledger_path = path / "ledger"
        self.cluster = {"name": "faults", "workers": 2, "timeout": 60, "save_limit": 0, **(cluster or {})}
        self.settings = {"DATABASES": {"default": database.settings}, **settings}
        self.clusters: list[ClusterProcess] = []
        self._callers: list[subprocess.Popen[str]] = []
        self.ids: dict[str, str] = {}
        """key → id of every task called with send()."""

    def environment(self, **settings: object) -> dict[str, str]:
        """settings: Django settings; those that begin with QWORKER_ are environment variables."""
        variables = {name: str(settings.pop(name)) for name in list(settings) if name.startswith("QWORKER_")}
        given = {**self.settings, "Q_CLUSTER": self.cluster, **settings}
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONIOENCODING": "utf-8",
            "LEDGER": str(self.ledger_path),
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.django_settings",
            "DJANGO_SITE": json.dumps(given, default=str),
            **variables,
        }

    # -- acting --

    def start(
        self, name: str = "one", *options: str, ready: bool = True, **settings: object
    ) -> ClusterProcess:
        cluster = ClusterProcess(self, name, *options, **settings)
        self.clusters.append(cluster)
        return cluster.wait_ready() if ready else cluster

    def caller(self, **settings: object) -> Callable[[str], Any]:
        """A process of the project: call it with code; it returns what the code assigned to ``answer``."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.django_caller"],
            cwd=self.path,
            env=self.environment(**settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._callers.append(process)

        def call(code: str) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, "the process that calls has ended"
            reply = json.loads(line)
            assert "error" not in reply, reply["error"]
            return reply["answer"]

        return call

    def do(self, code: str) -> Any:
        """Run *code* in the first caller, with the names of qworker.django's tasks and models; returns its
        answer."""
        if not hasattr(self, "_first"):
            self._first = self.caller()
        return self._first(code)

    def send(self, function: str, key: str, *args: Any, **options: Any) -> str:
        """Call a function of django_tasks.py; return the id of the task."""
        return self.send_many(function, [(key, *args)], **options)[0]

    def send_many(self, function: str, calls: Sequence[tuple[Any, ...]], **options: Any) -> list[str]:
        ids: list[str] = self.do(
            f"answer = [async_task({f'{TASKS}.{function}'!r}, *args, **{options!r})"
            f" for args in {list(calls)!r}]"
        )
        self.ids |= {str(args[0]): task_id for args, task_id in zip(calls, ids, strict=True)}
        return ids

    # -- looking --

    def starts(self, key: str) -> int:
        return self._counted(STARTED)[key]

    def ends(self, key: str) -> int:
        return self._counted(ENDED)[key]

    def _counted(self, kind: str) -> Counter[str]:
        return Counter(record.id for record in ledger.read(self.ledger_path) if record.kind == kind)

    def task(self, task_id: str) -> dict[str, Any] | None:
        """The fields of a row of ``Task``."""
        found: dict[str, Any] | None = self.do(
            f"answer = Task.objects.filter(pk={task_id!r}).values().first()"
        )
        return found

    def tasks(self, **conditions: Any) -> list[dict[str, Any]]:
        """The rows of ``Task``, without the pickled fields."""
        return list(
            self.do(
                "answer = list(Task.objects.filter(**"
                f"{conditions!r}).values('id', 'name', 'func', 'success', 'group', 'attempt_count'))"
            )
        )

    def waiting(self) -> int:
        """The number of messages in the broker, in all states."""
        return int(
            self.do(
                """
                from qworker.django.clusters.engine import app
                (found,) = app().broker.admin.depths(["faults"])  # in one look: one that goes back is in one
                answer = found.ready + found.delayed + found.leased
                """
            )
        )

    def dead(self) -> list[str]:
        """The reasons of the dead letters."""
        return list(
            self.do(
                "from qworker.django.clusters.engine import app\n"
                "answer = [letter.reason for letter in app().broker.admin.dead(limit=1000)]"
            )
        )

    @property
    def log(self) -> str:
        return "\n".join(cluster.log for cluster in self.clusters)

    # -- waiting --

    def until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        return until(condition, what, *self.clusters, seconds=seconds)

    def started(self, key: str, times: int = 1) -> None:
        self.until(lambda: self.starts(key) >= times, f"{key} to start {times} times")

    def drained(self) -> None:
        """Wait until every message has been settled."""
        self.until(lambda: self.waiting() == 0, "the queue to be empty")

    def finished(self, task_id: str) -> dict[str, Any]:
        """Wait for the row of a task, and return it."""
        return self.until(lambda: self.task(task_id), f"the end of {task_id}")

    def check(self, *, once: bool = False) -> None:
        """Every call of send() has ended and has one successful row in ``Task``; there are no other rows.

        once: none was started twice.
        """
        self.drained()
        starts, ends = self._counted(STARTED), self._counted(ENDED)
        rows = Counter(row["id"] for row in self.tasks(success=True))
        for key, task_id in self.ids.items():
            about = (
                f"{key} [{task_id}]: {starts[key]} starts, {ends[key]} ends, {rows[task_id]} rows\n{self.log}"
            )
            assert ends[key] >= 1, f"lost: {about}"
            assert rows[task_id] == 1, f"result: {about}"
            assert not once or starts[key] == 1, f"twice: {about}"
        assert rows.keys() == set(self.ids.values()), self.log
        assert not self.dead(), self.log

    def close(self) -> None:
        for process in self._callers:
            process.kill()
            process.communicate()
        for cluster in self.clusters:
            cluster.end()


@contextmanager
def site_on(
    path: Path, database: ProjectDatabase, cluster: dict[str, Any] | None = None, **settings: Any
) -> Iterator[DjangoSite]:
    site = DjangoSite(path, database, cluster, **settings)
    try:
        yield site
    finally:
        site.close()


def migrated(kind: str, path: Path, url: str = "") -> ProjectDatabase:
    """A new database with all tables."""
    database = ProjectDatabase(kind, path, url)
    migrate(path, database)
    return database


def migrate(path: Path, database: ProjectDatabase, alias: str = "default", **settings: Any) -> None:
    site = DjangoSite(path, database, **settings)
    done = subprocess.run(
        [sys.executable, "-m", "django", "migrate", "--verbosity=0", f"--database={alias}"],
        cwd=path,
        env=site.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
