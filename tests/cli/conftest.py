"""A project with tasks, and two ways to run commands in it: in this process and in a subprocess."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qworker.app import QWorker
from qworker.beat.leadership import Leadership
from qworker.beat.service import Beat
from qworker.cli.discovery import find_app
from qworker.cli.main import main
from qworker.context import all_apps
from qworker.transports.lease import DeadLetter, Envelope
from tests.support.waiting import PATIENCE, until

TASKS = """
    from qworker import QWorker

    app = QWorker("tasks")


    @app.task
    def add(x: int, y: int) -> int:
        return x + y


    @app.task
    def fail() -> None:
        print("about to fail")
        raise ValueError("no luck")
"""

Run = Callable[..., Result]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tasks(project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, which contains tasks.py."""
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    yield project(**{"tasks.py": TASKS})
    for app in all_apps():
        app.close()


@pytest.fixture
def existing_broker(tasks: Path) -> Path:
    """The same directory, with a broker file that exists and is empty."""
    broker = find_app("tasks").app.broker
    broker.sender.push([Envelope("celery", "{}", None, b"")])
    broker.admin.purge("celery")
    return tasks


@pytest.fixture
def run() -> Run:
    """Runs a command in this process."""

    # Before click 8.2 a runner mixes the two streams by default.
    mixing = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(**({"mix_stderr": False} if mixing else {}))

    def invoke(*arguments: str, input: str | None = None) -> Result:
        return runner.invoke(main, list(arguments), input=input, catch_exceptions=False)

    return invoke


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for subprocesses."""
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "error::DeprecationWarning:qworker"}


@pytest.fixture
def shell(environment: dict[str, str]) -> Shell:
    """Runs a command in a subprocess."""

    def execute(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
        environ = {**environment, **more.pop("env", {})}  # type: ignore[dict-item]
        command = [sys.executable, "-m", "qworker", *arguments]
        options = {"capture_output": True, "text": True, "timeout": 30, "stdin": subprocess.DEVNULL, **more}
        return subprocess.run(command, env=environ, check=False, **options)  # type: ignore[call-overload, no-any-return]

    return execute


@pytest.fixture
def dead_letter(tasks: Path) -> Callable[..., None]:
    """Creates dead letters, as a worker that rejects every message."""

    def give_up(
        count: int, reason: str = "it never runs", headers: str | None = None, body: bytes = b"[[],{},{}]"
    ) -> None:
        app = find_app("tasks").app
        plain = '{"task": "tasks.add", "id": "abc"}'
        app.broker.sender.push([Envelope("celery", headers or plain, None, body)] * count)
        generation = app.broker.consumer.register("undertaker@here", ["celery"], 1)
        leased = app.broker.consumer.lease(["celery"], 100).messages
        assert len(leased) == count
        app.broker.consumer.settle(generation, [DeadLetter(message.tag, reason) for message in leased])
        app.broker.consumer.deregister()

    return give_up


@pytest.fixture
def succeed(tasks: Path) -> Callable[..., None]:
    """Stores the outcome of a task, as a worker does."""

    def store(task_id: str, **meta: object) -> None:
        find_app("tasks").app.backend.store(
            task_id, {"task_id": task_id, "traceback": None, "children": [], **meta}
        )

    return store


@pytest.fixture
def leader() -> Iterator[Callable[..., Beat]]:
    """Starts a scheduler for an app in a thread. about: its own description in the leader record."""
    services: list[Beat] = []

    def begin(app: QWorker, about: str | None = None) -> Beat:
        service = Beat(app, lambda name, error: None)
        if about is not None:
            service.leadership = Leadership(service.store, "somebody:1", about)
        services.append(service)
        service.start()
        until(lambda: app.schedules.leader().holder)
        return service

    yield begin
    for service in services:
        service.stop()
        assert service.join(PATIENCE)
