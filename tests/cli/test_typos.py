"""Typing errors: misspelt names, and options that have no effect alone."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from qworker.cli.discovery import find_app
from qworker.cli.main import main
from qworker.cli.options import DependentOption
from qworker.transports.amqp.queues import OURS
from qworker.transports.lease import Envelope
from tests.servers import require
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tasks.ad", "did you mean 'tasks.add'?\n"),
        ("taks.add", "did you mean 'tasks.add'?\n"),
        ("fial", "did you mean 'tasks.fail'?\n"),
        ("nope", "This app has: tasks.add, tasks.fail\n"),
        ("", "This app has: tasks.add, tasks.fail\n"),
    ],
)
def test_call_of_an_unknown_task_suggests_names(tasks, run, name, words):
    result = run("call", name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith(words), result.stderr


def test_call_in_an_app_without_tasks(project, run):
    project(**{"tasks.py": 'from qworker import QWorker\napp = QWorker("tasks")\n'})
    assert "This app has no tasks" in run("call", "add").stderr


def test_beat_accepts_short_task_names(tasks, run):
    added = run("beat", "add", "x", "add", "--every", "5", "-a", "[1, 2]", "--json")
    assert (json.loads(added.stdout)["task"], "Warning" in added.stderr) == ("tasks.add", False)
    run("beat", "set", "x", "--task", "fail", "-a", "[]")
    assert json.loads(run("beat", "show", "x", "--json").stdout)["task"] == "tasks.fail"


def test_beat_refuses_an_invalid_priority(tasks, run):
    refused = run("beat", "add", "x", "tasks.fail", "--every", "5", "--option", "priority=99")
    assert (refused.exit_code, "priority=99" in refused.stderr) == (1, True)


@pytest.fixture
def queued_messages(tasks) -> None:
    """Two messages in the queue `celery` and one in `reports`."""
    queues = ("celery", "celery", "reports")
    find_app("tasks").app.broker.sender.push([Envelope(queue, "{}", None, b"") for queue in queues])


@pytest.mark.parametrize(
    "command",
    [
        "queues -Q reprots",
        "tasks -Q reprots",
        "purge -Q reprots --yes",
        "delayed flush -Q reprots --yes",
        "failed list -Q reprots",
        "failed retry -Q reprots",
        "failed discard -Q reprots --yes",
        "dead list -Q reprots",
    ],
)
def test_misspelt_queue_name_is_reported_with_a_suggestion(queued_messages, run, command):
    result = run(*command.split())
    assert result.exit_code == 0
    assert "There is no queue 'reprots'. Did you mean 'reports'?\n" in result.stderr
    right = run(*command.replace("reprots", "reports").split())
    assert "There is no queue" not in right.stderr
    assert "There is no queue" not in run(*command.replace("reprots", "zzz").split()).stderr


def test_move_reports_a_misspelt_queue_name(queued_messages, run):
    result = run("move", "sqlite:///.qworker/qworker.db", "sqlite:///other.db", "-Q", "reprots", "--yes")
    assert result.stdout == "There is nothing to move.\n"
    assert "There is no queue 'reprots'. Did you mean 'reports'?\n" in result.stderr
    assert not Path("other.db").exists()


def test_purge_refuses_a_misspelt_queue_to_exclude(queued_messages, run):
    refused = run("purge", "-X", "reprots", "--yes")
    assert (refused.exit_code, "Did you mean 'reports'?" in refused.stderr) == (2, True)
    assert run("purge", "-X", "reports", "--yes").stdout == "Removed 2 messages.\n"


def dependent_options() -> Iterator[tuple[str, click.Option]]:
    """All options of all commands that only have an effect with another option."""
    pending: list[tuple[str, click.Command]] = [("", main)]
    while pending:
        path, command = pending.pop()
        yield from ((path, param) for param in command.params if isinstance(param, DependentOption))
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for name in command.list_commands(context):
                    found = command.get_command(context, name)
                    assert found is not None
                    pending.append((f"{path} {name}".strip(), found))


GOOD = {"--timeout": "5", "--every": "1", "--signal": "INT", "--force": None, "--yes": None}


@pytest.mark.parametrize(
    ("path", "option"),
    [pytest.param(path, each, id=f"{path} {each.name}") for path, each in dependent_options()],
)
def test_option_without_the_option_it_needs_is_refused(tasks, run, path, option):
    name = max(option.opts, key=len)
    value = [] if GOOD[name] is None else [GOOD[name]]
    arguments = {"call": ["add", "1", "2"], "result": ["x"], "revoke": ["x"], "init": ["project"]}.get(
        path, []
    )
    refused = run(*path.split(), *arguments, name, *value)
    assert refused.exit_code == 2
    assert f"Error: {name} needs --{option.requires}.\n" in refused.stderr


def test_dependent_options_include_the_known_ones():
    found = {(path, max(each.opts, key=len)) for path, each in dependent_options()}
    assert found >= {
        ("call", "--timeout"),
        ("result", "--timeout"),
        ("result", "--every"),
        ("queues", "--every"),
        ("workers", "--every"),
        ("tasks", "--every"),
        ("revoke", "--signal"),
        ("init", "--force"),
    }


def test_help_does_not_show_type_names_of_click(tasks, run):
    """Such as INTEGER RANGE, which mean nothing to users."""
    pending: list[list[str]] = [[]]
    while pending:
        path = pending.pop()
        text = run(*path, "--help").stdout
        assert not {"INTEGER", "FLOAT", "RANGE"} & set(text.split()), path
        command: click.Command = main
        for name in path:
            assert isinstance(command, click.Group)
            with click.Context(command) as context:
                found = command.get_command(context, name)
            assert found is not None
            command = found
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                pending += [[*path, name] for name in command.list_commands(context)]


def test_eta_and_countdown_exclude_each_other(tasks, run):
    refused = run("call", "add", "1", "2", "--eta", "2030-01-31", "--countdown", "5")
    assert (refused.exit_code, "not both" in refused.stderr) == (2, True)


@pytest.mark.parametrize("eta", ["2030-01-31", "2030-01-31T08:00", "2030-01-31T08:00:00Z"])
def test_eta_accepts_iso_8601(existing_broker, run, eta):
    assert run("call", "add", "1", "2", "--eta", eta).exit_code == 0
    (seen,) = find_app("tasks").app.peek()
    assert seen.state == "delayed"


def test_call_prints_the_id_if_waiting_times_out(tasks, run):
    result = run("call", "add", "1", "2", "--task-id", "mine", "--wait", "--timeout", "0.05", "--json")
    printed = json.loads(result.stdout)
    assert (result.exit_code, printed["id"], printed["state"]) == (3, "mine", "PENDING")


def test_ctrl_c_while_waiting_explains_how_to_get_the_result(tasks, environment):
    """The task was sent and continues; its id would be lost."""
    arguments = [sys.executable, "-m", "qworker", "call", "add", "1", "2", "--task-id", "mine", "--wait"]
    with subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        printed = process.stderr.readline() + process.stderr.readline()
        assert "No worker consumes queue" in printed
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == (
            "\nThe task continues; ask later: qworker result mine\n\nInterrupted.\n"
        )
        assert process.wait(PATIENCE) == 130


def test_error_in_shell_code_shows_its_own_traceback(tasks, run):
    code = "def f():\n    1 / 0\nf()"
    for result in (run("shell", "-c", code), run("shell", input=code)):
        assert result.exit_code == 1
        head, first, *_, last = result.stderr.splitlines()[1:]
        assert (head, "line 3, in <module>" in first) == ("Traceback (most recent call last):", True)
        assert last == "ZeroDivisionError: division by zero"
    ours = run("shell", "-c", "tasks['nope']")
    assert (ours.exit_code, "Traceback" in ours.stderr, "no task named 'nope'" in ours.stderr) == (
        1,
        False,
        True,
    )
    result = run("shell", "-c", "what is this")
    assert (result.exit_code, result.stderr.count("File ")) == (1, 1)


def test_init_leaves_no_partial_file_on_a_full_disk(tasks, run, monkeypatch):
    def fill_up(self: Path, *args: object, **kwargs: object) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill_up)
    result = run("init", "docker", "--write")
    assert (result.exit_code, "No space left" in result.stderr) == (1, True)
    assert not Path("Dockerfile").exists()


def test_init_reports_an_app_that_cannot_be_imported(tasks, run):
    Path("tasks.py").write_text("from qworker import QWorker\nimport nosuchmodule\n")
    result = run("init", "docker")
    assert (result.exit_code, "No module named 'nosuchmodule'" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("kind", "words"), [("sytemd", "did you mean 'systemd'?"), ("kuberntes", "did you mean 'kubernetes'?")]
)
def test_init_suggests_the_kind_for_a_typo(tasks, run, kind, words):
    result = run("init", kind)
    assert (result.exit_code, words in result.stderr) == (2, True)


def test_config_check_of_an_unknown_broker_reports_one_problem(project, run):
    project(**{"tasks.py": 'from qworker import QWorker\napp = QWorker("tasks", broker="reddis://x")\n'})
    result = run("config", "check")
    error, count = result.stdout.splitlines()
    assert (result.exit_code, "did you mean redis://?" in error, count) == (1, True, "1 problem.")


def test_config_check_connect_includes_the_embedded_broker(tasks, run):
    Path(".qworker").write_text("in the way")
    assert run("config", "check").exit_code == 0
    assert run("config", "check", "--connect").exit_code == 1


def test_missing_driver_is_reported_as_one_problem(project, shell):
    """Although the settings, the schedule store and the server checks each need it."""
    url = "postgresql://u:p@localhost/x"
    app = f"from qworker import QWorker\napp = QWorker('tasks', broker='{url}', backend='{url}')\n"
    project(**{"tasks.py": app, "psycopg.py": "raise ImportError('gone', name='psycopg')\n"})
    done = shell("config", "check", "--connect")
    error, count = done.stdout.splitlines()
    assert (done.returncode, "psycopg is not installed" in error, count) == (1, True, "1 problem.")


def test_problems_of_similar_setting_names_are_reported_separately(project, run):
    changes = "changes={'accept_content': 5, 'result_accept_content': 5}"
    project(**{"tasks.py": f"from qworker import QWorker\napp = QWorker('tasks', {changes})\n"})
    assert run("config", "check").stdout.endswith("2 problems.\n")


def test_report_counts_only_user_tasks(tasks, run):
    printed = run("report").stdout
    assert "makes an app), 2 tasks\nsettings: default\nproblems: none\n" in printed


def test_call_suggests_a_queue_that_a_worker_consumes(tasks, run):
    consumer = find_app("tasks").app.broker.consumer
    consumer.register("w@here", ["reports"], 1)
    try:
        printed = run("call", "add", "1", "2", "-Q", "reprots").stderr
        assert "Did you mean 'reports'?\n" in printed
        assert "Did you mean 'celery'?\n" in run("call", "add", "1", "2", "-Q", "celeryy").stderr
        assert "Did you mean" not in run("call", "add", "1", "2", "-Q", "other").stderr
    finally:
        consumer.deregister()


def test_purge_finds_a_queue_that_rabbitmq_does_not_list(project, run):
    """RabbitMQ answers for a queue by name, but qworker cannot list its queues."""
    url, prefix = require("rabbitmq"), f"test.{uuid.uuid4().hex[:12]}."
    settings = f"broker={url!r}, broker_transport_options={{'queue_name_prefix': {prefix!r}}}"
    project(**{"tasks.py": f"from qworker import QWorker\napp = QWorker('tasks', {settings})\n"})
    broker = find_app("tasks").app.broker
    try:
        assert run("call", "x", "--by-name", "-Q", "parked").exit_code == 0
        result = run("purge", "-Q", "parked", "--yes")
        assert (result.exit_code, result.stdout) == (0, "Removed 1 message.\n")
    finally:
        link = broker.server.connect()
        for queue in ("parked", "celery", *OURS):
            link.call(link.channel().queue_delete, prefix + queue)
        link.close()


def test_graph_refuses_results_that_only_the_caller_receives(project, run):
    project(**{"tasks.py": 'from qworker import QWorker\napp = QWorker("tasks", broker="amqp://h")\n'})
    result = run("graph", "x")
    assert (result.exit_code, "in the calling process" in result.stderr) == (1, True)


@pytest.mark.parametrize("setting", ["imports", "include"])
def test_missing_task_module_is_reported_with_its_setting(project, run, setting):
    made = f'from qworker import QWorker\napp = QWorker("tasks", {setting}=["tasks.mail"])\n'
    project(**{"tasks.py": made})
    result = run("call", "add")
    assert result.exit_code == 1
    assert f"Error: {setting} names 'tasks.mail': " in result.stderr


def test_shell_does_not_hide_builtins(tasks, run):
    assert run("shell", "-c", "print(list(map(str, [1])), add.name)").stdout == "['1'] tasks.add\n"
