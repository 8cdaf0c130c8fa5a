"""The command group: help without imports, suggestions, one-line errors, interrupts and closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from qworker import __version__
from qworker.cli.main import ALIASES, COMMANDS, main
from qworker.errors import PublishError

HEAVY = ("kombu", "sqlalchemy", "asyncio", "billiard", "qworker.app", "qworker.errors", "sqlite3", "logging")


def test_help_lists_every_command_without_importing_them(environment):
    code = (
        "import sys\nfrom qworker.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit as end: code = end.code\n"
        f"print(code, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
    for name, (_, _, line) in COMMANDS.items():
        assert name in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("name", [*COMMANDS, *ALIASES])
def test_every_command_has_help(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")


def test_every_option_has_help():
    context = click.Context(main)
    bare = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        for one in [command, *getattr(command, "commands", {}).values()]:
            assert one.help
            bare += [f"{one.name} {p.name}" for p in one.params if isinstance(p, click.Option) and not p.help]
    assert bare == []


def test_version(run):
    assert run("--version").output == f"qworker {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["strat"], "Did you mean 'start'?"),
        (["xyzzy"], "There are: start, beat, call"),
        (["start", "--concurency", "2"], "--concurrency"),
        (["dead", "lsit"], "list"),
        (["start", "-P", "gevent"], "prefork"),
    ],
)
def test_typos_are_usage_errors_with_a_suggestion(run, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output


def test_own_errors_are_one_line_with_passwords_masked(run, monkeypatch):
    def fail(*_, **__):
        raise PublishError("cannot reach redis://u:hunter2@h")

    monkeypatch.setitem(COMMANDS, "fail", ("test", "fail", ""))
    monkeypatch.setitem(sys.modules, "qworker.cli.test", type(sys)("test"))
    sys.modules["qworker.cli.test"].fail = click.command("fail")(fail)
    result = run("fail")
    assert (result.exit_code, result.stderr) == (1, "Error: cannot reach redis://u:********@h\n")


def test_unexpected_errors_are_not_hidden(run, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setitem(COMMANDS, "fail", ("test", "fail", ""))
    monkeypatch.setitem(sys.modules, "qworker.cli.test", type(sys)("test"))
    sys.modules["qworker.cli.test"].fail = click.command("fail")(fail)
    with pytest.raises(ZeroDivisionError):
        run("fail")


def test_interrupt_ends_quietly(run, monkeypatch):
    def fail(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "fail", ("test", "fail", ""))
    monkeypatch.setitem(sys.modules, "qworker.cli.test", type(sys)("test"))
    sys.modules["qworker.cli.test"].fail = click.command("fail")(fail)
    result = run("fail")
    assert (result.exit_code, result.stderr.strip()) == (130, "Interrupted.")


def test_closed_pipe_ends_quietly(tasks, environment):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "qworker", "config", "show", "-A", "tasks"]
    done = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=30
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"TZ": "Mars/Base"},
        {"HOME": "/nonexistent"},
        {"TERM": "dumb", "NO_COLOR": "1"},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_unusual_environments(tasks, shell, odd):
    done = shell("doctor", "-A", "tasks", env=odd)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "2 tasks" in done.stdout


def test_closed_standard_streams_are_accepted(existing_broker, environment):
    command = f'"{sys.executable}" -m qworker queues -A tasks <&- 2>&1'
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stdout
    command = f'"{sys.executable}" -m qworker queues -A tasks >&- 2>&-'
    assert subprocess.run(["sh", "-c", command], env=environment, timeout=30).returncode == 0


def test_deleted_working_directory_is_an_error(tmp_path, environment):
    command = (
        f'mkdir "{tmp_path}/gone"; cd "{tmp_path}/gone"; rmdir "{tmp_path}/gone"; "{sys.executable}" '
        "-m qworker queues"
    )
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "Error: the working directory is gone; change to one that exists"


def test_celery_command_line_order_is_accepted(tasks, run):
    result = run("-A", "tasks", "call", "add", "1", "2")
    assert result.exit_code == 0
    assert "Using" not in result.stderr
    assert main.get_command(click.Context(main), "worker") is main.get_command(click.Context(main), "start")
