"""workers, tasks, queues -Q, result --watch: their output, and messages about what a broker cannot show."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from qworker.cli import tasks as tasks_command
from qworker.cli import workers as workers_command
from qworker.cli.discovery import find_app
from qworker.control.looking import TaskSeen
from qworker.transports.amqp.queues import OURS
from qworker.transports.presence import Presence, RunningTask
from tests.servers import require

SCREENS = Path(__file__).parent / "screens"
NOW = 1_000_000.0
WORKERS = [
    Presence(
        "celery@web1", 811, ("celery", "mail"), 4, NOW - 10_800, "web1", "working", (812, 813), 0, 3, 0, 0, 2,
        (
            RunningTask("5c0e", "shop.invoice", NOW - 75, 813, "celery"),
            RunningTask("9f41", "shop.\x1b[2Jmail", NOW - 3.25, 812, "mail"),
        ),
        {"finished": 9120}, NOW - 0.4, "0.1.0", "3.12.7", 41_000_000, (30_000_000, 1_250_000_000),
    ),
    Presence("old@web2", 804, ("celery",), 1, NOW - 60, seen=NOW - 4),
]  # fmt: skip
TASKS = [
    TaskSeen("5c0e", "shop.invoice", "running", "celery", "(17,)", "{}", 0, 1, 1, NOW - 99, None, NOW - 75,
             "celery@web1", 813),
    TaskSeen("77aa", "shop.invoice", "reserved", "celery", "()", "{'all': True}", 9, worker="celery@web1"),
    TaskSeen("", "", "waiting", "mail", sent=NOW - 7200, priority=0),
    TaskSeen("b3d1", "shop.report", "delayed", "mail", f"({'7' * 50},)", "{}", 0, eta=NOW + 300, sent=NOW),
]  # fmt: skip


def screen(name):
    return (SCREENS / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def test_workers_table():
    assert workers_command.lines(WORKERS, NOW) == screen("workers")
    busier = [WORKERS[0]._replace(busy=2002)]
    assert workers_command.lines(busier, NOW)[-1] == "… and 2000 more tasks"


def test_tasks_table():
    assert tasks_command.lines(TASKS, 2, NOW) == screen("tasks")
    assert tasks_command.lines(TASKS, 1, NOW)[-1].startswith("… and perhaps more: these are the first 1 of")


def test_tasks_are_shown_without_being_delivered(existing_broker, run):
    assert run("tasks").stdout == "There are no tasks.\n"
    run("call", "add", "1", "2")
    run("call", "add", "3", "4", "--countdown", "1h", "--queue", "mail")
    head, first, second = run("tasks").stdout.splitlines()
    assert head.split() == [
        "state", "task", "arguments", "id", "queue", "priority", "attempt", "when", "worker", "child",
    ]  # fmt: skip
    assert first.split()[:4] == ["waiting", "tasks.add", "(1,", "2)"]
    assert "in 60 min" in second or "in 1 h" in second
    waiting, delayed = json.loads(run("tasks", "--json").stdout)
    assert list(waiting) == [
        "id", "name", "state", "queue", "args", "kwargs", "priority", "retries", "deliveries", "sent", "eta",
        "started", "worker", "pid",
    ]  # fmt: skip
    assert (waiting["state"], waiting["args"], waiting["kwargs"]) == ("waiting", "(1, 2)", "{}")
    assert (delayed["queue"], delayed["eta"] > delayed["sent"]) == ("mail", True)
    (only,) = json.loads(run("tasks", "-Q", "mail", "--state", "delayed", "--json").stdout)
    assert only == delayed
    assert run("tasks", "-Q", "mail", "--state", "waiting").stdout == "There are no such tasks.\n"
    assert run("tasks", "--state", "gone").exit_code == 2
    (info,) = find_app("tasks").app.broker.admin.depths(["celery"])
    assert (info.ready, info.leased) == (1, 0)


def test_broker_that_cannot_show_tasks_is_an_error(tasks, run):
    Path("plain.py").write_text(
        "from qworker import QWorker\napp = QWorker('plain', broker_url='memory://')\n"
    )
    result = run("tasks", "-A", "plain", "-Q", "celery")
    assert (result.exit_code, result.stdout) == (1, "")
    said = "this broker cannot show messages without delivering them; `qworker queues` counts them"
    assert result.stderr == f"Error: {said}\n"


def test_named_queues_are_shown_even_if_empty(tasks, run):
    run("call", "add", "1", "2")
    run("call", "add", "1", "2", "--queue", "mail")
    rows = [line.split()[:2] for line in run("queues", "-Q", "nothing,mail").stdout.splitlines()[1:]]
    assert rows == [["nothing", "0"], ["mail", "1"]]


def test_result_is_watched_until_the_task_ends(tasks, shell, succeed, environment):
    watching = subprocess.Popen(
        [sys.executable, "-m", "qworker", "result", "abc", "--watch", "--every", "0.1", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert json.loads(watching.stdout.readline())["state"] == "PENDING"
        succeed("abc", status="STARTED", result={"pid": 7})
        assert json.loads(watching.stdout.readline())["result"] == {"pid": 7}
        succeed("abc", status="SUCCESS", result=3)
        assert json.loads(watching.stdout.readline())["result"] == 3
        assert (watching.stdout.read(), watching.wait(60)) == ("", 0)
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()


def test_end_of_a_watched_task_is_noticed_without_polling(tasks, succeed, environment):
    succeed("other", status="SUCCESS", result=1)  # creates the store
    watching = subprocess.Popen(
        [sys.executable, "-m", "qworker", "result", "abc", "other", "--watch", "--every", "1h", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert [each["state"] for each in json.loads(watching.stdout.readline())] == ["PENDING", "SUCCESS"]
        succeed("abc", status="SUCCESS", result=3)
        assert [each["result"] for each in json.loads(watching.stdout.readline())] == [3, 1]
        assert (watching.stdout.read(), watching.wait(60)) == ("", 0)
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()


def test_finished_results_are_printed_once(tasks, run, succeed):
    succeed("one", status="SUCCESS", result=[1])
    error = {"exc_type": "ValueError", "exc_message": ["no"], "exc_module": "builtins"}
    succeed("two", status="FAILURE", result=error)
    result = run("result", "one", "two", "--watch")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == ["one  [1]", "two  FAILURE: ValueError: no"]


@pytest.mark.parametrize("command", ["workers", "tasks", "queues"])
def test_ctrl_c_ends_watching_in_a_terminal(tasks, environment, command):
    process, terminal = pty.fork()
    if process == 0:
        try:
            os.execve(
                sys.executable,
                [sys.executable, "-m", "qworker", command, "--watch"],
                environment | {"TERM": "xterm"},
            )
        finally:
            os._exit(99)
    seen = b""
    try:
        while b"Ctrl-C ends" not in seen:
            seen += os.read(terminal, 10_000)
        os.write(terminal, b"\x03")
        _, status = os.waitpid(process, 0)
        process = 0
    finally:
        os.close(terminal)
        if process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"\x1b[H\x1b[J" in seen
    assert b"Traceback" not in seen


def test_only_running_tasks_are_shown_if_messages_cannot_be_read(project, run):
    url, prefix = require("rabbitmq"), f"test.{uuid.uuid4().hex[:12]}."
    settings = f"broker={url!r}, broker_transport_options={{'queue_name_prefix': {prefix!r}}}"
    project(**{"tasks.py": f"from qworker import QWorker\napp = QWorker('tasks', {settings})\n"})
    broker = find_app("tasks").app.broker
    try:
        assert run("tasks").stdout.splitlines()[0] == "No task is running."
        running = {"id": "5c0e", "name": "shop.invoice", "started": NOW, "queue": "celery"}
        broker.consumer.present(json.dumps({"running": [running], "busy": 1}))
        broker.consumer.register("w@far", ["celery"], 1)
        _, row, _, hint = run("tasks").stdout.splitlines()
        assert row.split()[:3] == ["running", "shop.invoice", "5c0e"]
        assert "`qworker queues` shows how many there are" in hint
        (found,) = json.loads(run("tasks", "--json").stdout)
        assert (found["id"], found["worker"]) == ("5c0e", "w@far")
        assert "`qworker queues`" not in run("tasks", "--state", "running").stdout
        assert "ok: w@far consumes from amqp://" in run("health").stdout
        broker.consumer.deregister()
        assert run("workers").stdout.startswith("No worker is running on amqp://")
    finally:
        broker.consumer.deregister()
        link = broker.server.connect()
        for queue in ("celery", *OURS):
            link.call(link.channel().queue_delete, prefix + queue)
        link.close()
