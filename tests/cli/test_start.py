"""qworker start: real workers, started and stopped by signals, and errors before a worker starts."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest

from qworker.cli.main import main
from qworker.cli.reload import Reloader, difference, loaded_files, project_files, snapshot
from tests.support.processes import SLOW, Started
from tests.support.waiting import until


@pytest.fixture
def start(environment):
    workers = []

    def begin(*arguments):
        workers.append(Started(environment, "start", "-c", "1", *arguments))
        return workers[-1]

    yield begin
    for worker in workers:
        try:
            os.killpg(worker.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.process.wait(SLOW)


def test_worker_runs_tasks_and_stops_on_a_signal(tasks, start, run):
    worker = start("-n", "w1@%h")
    ready = worker.says("ready; broker sqlite:///")
    assert re.search(
        r"db, results beside the messages, queues celery, pool prefork × \d+$", ready.rstrip()
    ), ready
    assert "Using tasks:app: tasks.py" in worker.lines[0]
    assert any("w1@" in line for line in worker.lines)
    assert any("2 tasks: tasks.add, tasks.fail" in line for line in worker.lines)
    result = run("call", "add", "2", "3", "--wait")
    assert (result.exit_code, result.stdout) == (0, "5\n")
    assert "No worker consumes" not in result.stderr
    failed = run("call", "fail", "-w", "--json")
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["result"] == {"type": "ValueError", "message": "no luck"}
    assert "WARNING" in worker.says("about to fail")
    assert "tasks.fail[" in worker.says("about to fail")
    assert run("doctor").exit_code == 0
    assert worker.stop() == 0
    worker.says("stopped")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_signals_stop_the_worker(tasks, start, number):
    worker = start("tasks.py", "-P", "solo")
    worker.says("ready")
    assert worker.stop(number) == 0
    assert "Traceback" not in "\n".join(worker.lines)


def test_solo_pool_warns_that_concurrency_has_no_effect(tasks, start):
    worker = start("-P", "solo", "-c", "4")
    worker.says("worker_concurrency is 4 and has no effect: the pool solo runs one task at a time")
    worker.says("pool solo × 1")
    assert worker.stop() == 0


def test_log_file_json_and_pid_file(tasks, start, shell):
    worker = start(
        "-A", "tasks", "-n", "w1", "-f", "%n.log", "--log-json", "--pidfile", "%n.pid", "-l", "info"
    )
    log, pid = Path("w1.log"), Path("w1.pid")
    until(lambda: log.exists() and "ready" in log.read_text())
    assert pid.read_text() == f"{worker.process.pid}\n"
    twin = shell("start", "-A", "tasks", "-n", "w1", "--pidfile", str(pid))
    assert twin.returncode == 1
    assert f"process id {worker.process.pid} is running" in twin.stderr
    assert worker.stop() == 0
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {record["node"].partition("@")[0] for record in records} == {"w1"}
    assert not pid.exists()


def test_stale_pid_file_of_a_killed_worker_is_replaced(tasks, start):
    worker = start("-A", "tasks", "--pidfile", "w.pid")
    worker.says("ready")
    os.killpg(worker.process.pid, signal.SIGKILL)
    worker.ended()
    assert Path("w.pid").exists()
    again = start("-A", "tasks", "--pidfile", "w.pid")
    again.says("ready")
    assert Path("w.pid").read_text() == f"{again.process.pid}\n"
    assert again.stop() == 0


def test_reload_runs_changed_code_and_waits_while_it_is_broken(tasks, start, run):
    worker = start("-A", "tasks", "--reload")
    worker.says("ready")
    source = (tasks / "tasks.py").read_text()
    (tasks / "tasks.py").write_text(source + "\ndef broken(:\n")
    worker.says("tasks.py changed")
    worker.says("Waiting for a Python file to change")
    assert any("SyntaxError" in line for line in worker.lines)
    # Python's cache invalidation compares size and modification time in seconds.
    (tasks / "tasks.py").write_text(source.replace("x + y", "x * y  # of another size"))
    worker.says("ready", times=2)
    assert run("call", "add", "4", "5", "-w", "-A", "tasks").stdout == "20\n"
    assert worker.stop() == 0


def test_options_override_settings(tasks, start, run, monkeypatch, environment):
    environment["QWORKER_WORKER_POOL"] = "prefork"
    worker = start("-A", "tasks", "-P", "threads", "-Q", "one,two", "--time-limit", "1h")
    worker.says("queues one, two, pool threads × 1")
    worker.says("ready")
    assert run("call", "add", "1", "1", "-Q", "two", "-w").stdout == "2\n"
    assert not any("no time limit" in line for line in worker.lines)
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-c", "0"], 2, "at least 1"),
        (["-c", "-1"], 2, "at least 1"),
        (["-c", "abc"], 2, "whole number"),
        (["-c", "1e9"], 2, "whole number"),
        (["-c", "99999"], 2, "at most 1024"),
        (["-Q", ""], 2, "name is empty"),
        (["-Q", "a,,b"], 2, "name is empty"),
        (["-Q", "a b"], 2, "is not a queue name"),
        (["-n", "a@b@c"], 2, "not a node name"),
        (["-n", "x" * 300], 2, "not a node name"),
        (["-n", "a\nb"], 2, "not a node name"),
        (["-l", "inof"], 2, "use INFO"),
        (["-P", "gevent"], 2, "prefork"),
        (["--start-method", "frok"], 2, "fork"),
        (["--prefetch-multiplier", "0"], 2, "at least 1"),
        (["--time-limit", "-1"], 2, "duration"),
        (["--time-limit", "long"], 2, "duration"),
        (["--max-tasks-per-child", "0"], 2, "at least 1"),
        (["--max-memory-per-child", "lots"], 2, "size"),
        (["--time-limit", "1", "--soft-time-limit", "5"], 1, "longer than task_time_limit"),
        (["-f", "missing/x.log"], 1, "cannot write the log file"),
        (["-f", "."], 1, "cannot write the log file"),
        (["-f", "%x.log"], 1, "unknown code '%x'"),
        (["--pidfile", "missing/x.pid"], 1, "cannot use the pid file"),
        (["--pidfile", "."], 1, "cannot use the pid file"),
        (["-A", "nope"], 1, "no module 'nope'"),
        (["-A", "tasks:nope"], 1, "did you mean tasks:app"),
        (["--out", "x"], 2, "--demo"),
        (["tsks"], 1, "did you mean tasks"),
        (["tasks", "-A", "tasks"], 2, "Name the app once"),
        (["tasks", "surplus"], 2, "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else None,
)
def test_invalid_options_are_refused_before_anything_starts(tasks, run, arguments, code, words):
    result = run("start", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tasks / ".qworker").exists()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("BROKER_URL", "", "broker_url must be a non-empty string"),
        ("BROKER_URL", "localhost", "broker_url must be a URL"),
        ("BROKER_URL", "redis://:hunter2@h:port/0", "port"),
        ("BROKER_URL", "nonsense://:hunter2@h", "nonsense"),
        ("WORKER_LOG_FORMAT", "%(nonsense)s", "worker_log_format cannot be used"),
        ("WORKER_MAX_TASKS_PER_CHILD", "many", "worker_max_tasks_per_child must be a whole number"),
        ("ACCEPT_CONTENT", "pickle", "security_key"),
    ],
)
def test_invalid_settings_are_refused(tasks, shell, setting, value, words):
    done = shell("start", "-A", "tasks", "-c", "1", env={f"QWORKER_{setting}": value})
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "hunter2" not in done.stderr + done.stdout


def test_undeclared_queue_is_refused(project, run):
    source = (
        "from qworker import QWorker\napp = QWorker('t', task_queues=['celery', 'mail'], "
        "task_create_missing_queues=False)"
    )
    project(**{"tasks.py": source})
    result = run("start", "-Q", "mial")
    assert result.exit_code == 1
    assert "use one of celery, mail" in result.stderr


def test_unknown_settings_are_logged_at_start(tasks, start, environment):
    environment["QWORKER_CONCURRENCY"] = "3"
    worker = start("-A", "tasks")
    assert "did you mean worker_concurrency" in worker.says("unknown setting")
    worker.says("ready")
    assert worker.stop() == 0


# -- the reloader --


def test_project_files_that_are_watched(tmp_path):
    for name in (
        "a.py",
        "b/c.py",
        "pyproject.toml",
        "x.txt",
        ".hidden/d.py",
        "__pycache__/e.py",
        "venv/f.py",
        "venv/pyvenv.cfg",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(os.path.relpath(path, tmp_path) for path in project_files(tmp_path)) == [
        "a.py",
        "b/c.py",
        "pyproject.toml",
    ]


def test_imported_files_outside_the_project_are_watched():
    assert __file__ in set(loaded_files(Path("/nonexistent"))) | {__file__}
    assert not any(path.startswith(sys.base_prefix + os.sep) for path in loaded_files(Path("/nonexistent")))
    assert not any(
        path.startswith(str(Path(main.callback.__code__.co_filename).parent))
        for path in loaded_files(Path(main.callback.__code__.co_filename).parent)
    )


def test_changed_added_and_removed_files_are_differences(tmp_path):
    for name in ("same", "changed", "removed"):
        (tmp_path / name).write_text("1")
    names = [str(tmp_path / name) for name in ("same", "changed", "removed", "added")]
    before = snapshot(names)
    assert len(before) == 3
    (tmp_path / "changed").write_text("22")
    (tmp_path / "removed").unlink()
    (tmp_path / "added").write_text("1")
    assert [Path(path).name for path in difference(before, snapshot(names))] == [
        "added",
        "changed",
        "removed",
    ]


def test_reloader_notices_a_change_in_the_project(tmp_path):
    reloader = Reloader(tmp_path)
    assert not reloader.look()
    (tmp_path / "new.py").write_text("")
    assert reloader.look()
    assert reloader.changed


def test_reloader_notices_a_change_of_an_imported_module_elsewhere(project, tmp_path):
    reloader = Reloader(tmp_path / "missing")
    project(**{"imported_elsewhere.py": "x = 1"})
    importlib.import_module("imported_elsewhere")
    assert not reloader.look()
    project(**{"imported_elsewhere.py": "x = 22"})
    assert reloader.look()


def test_reloader_calls_back_on_a_change(tmp_path):
    called = threading.Event()
    reloader = Reloader(tmp_path)
    (tmp_path / "new.py").write_text("")
    reloader.start(called.set)
    assert called.wait(SLOW)
