"""``qworker move`` between real brokers, also if it is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from qworker import QWorker
from qworker.transports.lease import Broker, DeadLetter, Envelope
from tests.acceptance.harness import REPOSITORY
from tests.acceptance.private_servers import serving
from tests.support.messages import call

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(120)]

BATCH = 100
LEASE_SECONDS = 2.0
TASKS = f"""
from qworker import QWorker

app = QWorker("tasks", worker_lease_seconds={LEASE_SECONDS})


@app.task
def add(x, y):
    return x + y
"""


class Project:
    """A directory with an app, and private brokers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        (path / "tasks.py").write_text(TASKS)

    def url(self, kind: str) -> str:
        """The URL of a new, empty broker of that kind."""
        if kind == "sqlite":
            return f"sqlite:///{self.path / os.urandom(4).hex()}.db"
        return self._stack.enter_context(serving(kind.replace("amqp", "rabbitmq"))).url

    def open(self, url: str) -> Broker:
        app = QWorker("test", broker=url, set_as_current=False, worker_lease_seconds=LEASE_SECONDS)
        self._stack.callback(app.close)
        return app.broker

    def move(self, old: str, new: str, *options: str, crash: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        if crash:
            environment["QWORKER_CRASH_AT"] = f"{crash}@{self.path / 'crashed'}"
        command = [sys.executable, "-m", "qworker", "move", old, new, "--yes", "-A", "tasks", *options]
        return subprocess.run(
            command, cwd=self.path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    def held(self, url: str) -> dict[str, list[tuple[int, float | None]]]:
        """Priority and due time of all messages by id; they are returned afterwards."""
        store = self.open(url)
        store.consumer.register("reader", ["celery"], 0)
        found: dict[str, list[tuple[int, float | None]]] = {}
        quiet = time.monotonic()
        while (
            time.monotonic() - quiet < LEASE_SECONDS + 1
        ):  # messages of dead consumers are returned in this time
            store.consumer.reclaim()
            for leased in store.consumer.lease(["celery"], 500, delayed_limit=500, eta_window=1e6).messages:
                found.setdefault(json.loads(leased.headers)["id"], []).append((leased.priority, leased.due))
                quiet = time.monotonic()
            time.sleep(0.02)
        store.consumer.deregister()
        return found

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


def messages(total: int, delayed: bool = True) -> list[Envelope]:
    now = round(time.time())
    return [
        call(
            f"id-{number}",
            priority=(0, 3, 6, 9)[number % 4],
            due=now + 3600.0 + number if delayed and number % 5 == 0 else None,
        )
        for number in range(total)
    ]


def by_id(sent: list[Envelope]) -> dict[str, list[tuple[int, float | None]]]:
    return {json.loads(each.headers)["id"]: [(each.priority, each.due)] for each in sent}


@pytest.mark.parametrize(
    "kinds",
    [
        ("sqlite", "sqlite"),
        ("sqlite", "redis", "sqlite"),
        ("redis", "redis"),
        ("sqlite", "redis", "postgresql"),
    ],
    ids="-".join,
)
def test_messages_keep_priority_and_due_time(project: Project, kinds: tuple[str, ...]) -> None:
    sent = messages(450)
    urls = [project.url(kind) for kind in kinds]
    project.open(urls[0]).sender.push(sent)
    for old, new in pairwise(urls):
        done = project.move(old, new)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Moved 450 messages."), done.stderr
        assert [
            info for info in project.open(old).admin.queues() if info.ready or info.delayed or info.leased
        ] == []
    assert project.held(urls[-1]) == by_id(sent)


def test_move_from_and_to_rabbitmq(project: Project) -> None:
    """Without priorities, since its queues must be declared with them."""
    sent = messages(250, delayed=False)
    first, rabbit, last = project.url("sqlite"), project.url("amqp"), project.url("sqlite")
    project.open(first).sender.push(sent)
    assert project.move(first, rabbit).returncode == 0
    done = project.move(rabbit, last)
    assert "Moved 250 messages." in done.stdout, done.stderr
    assert "stop them first" not in done.stderr, "it tells that no worker is running"
    assert project.held(last).keys() == by_id(sent).keys()


@pytest.mark.parametrize("point", ["publishing", "published", "claiming", "acking", "deregistering"])
def test_killed_move_can_be_repeated(project: Project, point: str) -> None:
    """Messages that were in both brokers may be in the new one twice: at most one batch. None is missing."""
    sent = messages(350)
    old, new = project.url("sqlite"), project.url("sqlite")
    project.open(old).sender.push(sent)
    killed = project.move(old, new, crash=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = project.move(old, new)
    assert done.returncode == 0, done.stderr
    found = project.held(new)
    assert found.keys() == by_id(sent).keys()
    assert sum(len(copies) - 1 for copies in found.values()) <= BATCH
    assert [
        info for info in project.open(old).admin.queues() if info.ready or info.delayed or info.leased
    ] == []


@pytest.mark.parametrize("kinds", [("sqlite", "redis"), ("redis", "sqlite")], ids="-".join)
def test_repeatedly_killed_move_can_be_repeated(project: Project, kinds: tuple[str, str]) -> None:
    """kill -9 as soon as some messages have arrived, several times."""
    sent = messages(4000)
    old, new = (project.url(kind) for kind in kinds)
    project.open(old).sender.push(sent)
    target = project.open(new)
    kills = 0
    while kills < 3:
        before = sum(info.ready + info.delayed for info in target.admin.queues())
        command = [sys.executable, "-m", "qworker", "move", old, new, "--yes", "-A", "tasks"]
        mover = subprocess.Popen(
            command,
            cwd=project.path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while (
            mover.poll() is None
            and sum(info.ready + info.delayed for info in target.admin.queues()) <= before + 300
        ):
            time.sleep(0.002)
        mover.kill()
        mover.wait()
        kills += 1
    done = project.move(old, new)
    assert done.returncode == 0, done.stderr
    found = project.held(new)
    assert found.keys() == by_id(sent).keys()
    assert sum(len(copies) - 1 for copies in found.values()) <= kills * BATCH


def test_unreachable_target_is_an_error(project: Project) -> None:
    sent = messages(10)
    old = project.url("sqlite")
    project.open(old).sender.push(sent)
    done = project.move(old, "redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:1" in done.stderr
    assert project.held(old) == by_id(sent)


def test_dead_letters_are_moved(project: Project) -> None:
    old, new = project.url("sqlite"), project.url("sqlite")
    store = project.open(old)
    store.sender.push(messages(150, delayed=False))
    generation = store.consumer.register("undertaker", ["celery"], 1)
    store.consumer.settle(
        generation,
        [DeadLetter(leased.tag, "because") for leased in store.consumer.lease(["celery"], 150).messages],
    )
    store.consumer.deregister()
    done = project.move(old, new, "--dead")
    assert "Moved 0 messages and 150 dead letters." in done.stdout, done.stderr
    assert Counter(letter.reason for letter in project.open(new).admin.dead(None, 1000)) == {"because": 150}
    assert store.admin.dead() == []


def test_progress_is_plain_lines_without_a_terminal(project: Project) -> None:
    old, new = project.url("sqlite"), project.url("sqlite")
    project.open(old).sender.push(messages(10_100, delayed=False))
    done = project.move(old, new)
    assert re.findall(r"^10000 of 10100 messages moved$", done.stderr, re.MULTILINE)
    assert "\r" not in done.stderr
