"""Shell completion: the names offered, and that nothing else is printed at the prompt."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from qworker.cli.completion import VARIABLE
from qworker.cli.main import COMMANDS, main

TASKS = """
    from qworker import QWorker

    app = QWorker(
        "tasks", task_queues=["mail", "reports"], task_routes={"tasks.load": {"queue": "routed"}},
    )


    @app.task
    def add(x: int, y: int) -> int:
        return x + y


    @app.task(queue="slow")
    def multiply(x: int, y: int) -> int:
        return x * y
"""
NOISE = """import atexit
import os
import subprocess
import threading
import time

print("noise")
os.write(2, b"more noise")
subprocess.run(["echo", "noise of others"])
atexit.register(print, "noise at the end")
threading.Thread(target=time.sleep, args=(600,)).start()

"""
QUEUES = ["celery", "mail", "reports", "routed", "slow"]


def completions(*words: str) -> list[str]:
    """The completions of the last word."""
    *before, incomplete = words
    found = ShellComplete(main, {}, "qworker", VARIABLE).get_completions(before, incomplete)
    return [item.value for item in found]


@pytest.fixture
def app(project, monkeypatch) -> Path:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    return project(**{"tasks.py": TASKS})


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["call", ""], ["tasks.add", "tasks.multiply"]),
        (["call", "tasks.m"], ["tasks.multiply"]),
        (["call", "ad"], ["add"]),
        (["call", "-A", "tasks", "tasks.a"], ["tasks.add"]),
        (["-A", "tasks", "call", "tasks.a"], ["tasks.add"]),
        (["beat", "add", "nightly", "tasks.a"], ["tasks.add"]),
        (["beat", "set", "nightly", "--task", "tasks.a"], ["tasks.add"]),
        (["failed", "list", "--task", "tasks.a"], ["tasks.add"]),
        (["start", "-Q", ""], QUEUES),
        (["start", "tasks", "-Q", "ma"], ["mail"]),
        (["purge", "-Q", "mail,r"], ["mail,reports", "mail,routed"]),
        (["queues", "-Q", "mail,reports,routed,slow,"], ["mail,reports,routed,slow,celery"]),
        (["call", "add", "-Q", "s"], ["slow"]),
        (["failed", "list", "-Q", "s"], ["slow"]),
        (["dead", "list", "-Q", "s"], ["slow"]),
        (["config", "show", "broker_connection_t"], ["broker_connection_timeout"]),
        (["init", "k"], ["k8s"]),
        (["ca"], ["call"]),
    ],
)
def test_matching_names_are_offered(app, words, names):
    assert completions(*words) == names


def test_commands_are_offered_without_importing_qworker(environment):
    code = (
        "import sys\nfrom click.shell_completion import ShellComplete\nfrom qworker.cli.main import main\n"
        f"found = ShellComplete(main, {{}}, 'qworker', {VARIABLE!r}).get_completions([], '')\n"
        "print(*(item.value for item in found))\nprint('qworker.app' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    names, imported = done.stdout.splitlines()
    assert (names.split(), imported) == (list(COMMANDS), "False")


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("bash", ["plain,tasks.add", "plain,tasks.multiply"]),
        ("zsh", ["plain", "tasks.add", "_", "plain", "tasks.multiply", "_"]),
        ("fish", ["plain,tasks.add", "plain,tasks.multiply"]),
    ],
)
def test_each_shell_gets_only_names_and_no_output_of_the_app(app, shell, kind, answer):
    (app / "tasks.py").write_text(NOISE + (app / "tasks.py").read_text())
    incomplete = "2" if kind != "fish" else ""  # fish passes the word itself, others its index
    env = {VARIABLE: f"{kind}_complete", "COMP_WORDS": "qworker call ", "COMP_CWORD": incomplete}
    done = shell(env=env)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, answer, "")
    assert f"{VARIABLE}={kind}_complete" in shell(env={VARIABLE: f"{kind}_source"}).stdout


@pytest.mark.parametrize(
    "text",
    [
        "raise ValueError('no luck')",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "import nothing_of_this_name",
        "this is no Python",
        "from time import sleep  # QWorker\nsleep(60)",
        "app = None  # QWorker",
    ],
)
def test_app_that_cannot_be_imported_offers_nothing(project, shell, text):
    project(**{"tasks.py": f"# QWorker\n{text}\n"})
    env = {VARIABLE: "bash_complete", "COMP_WORDS": "qworker call ", "COMP_CWORD": "2"}
    done = shell(env=env)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_missing_app_offers_nothing(project, shell):
    project(README="")
    env = {VARIABLE: "bash_complete", "COMP_WORDS": "qworker start -Q ", "COMP_CWORD": "3"}
    assert shell(env=env).stdout.strip() == ""


def test_unsupported_shell_offers_nothing(app, shell):
    done = shell(env={VARIABLE: "tcsh_complete", "COMP_WORDS": "qworker ", "COMP_CWORD": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_bash_completes(app, environment):
    """With the function that the how-to page tells users to load."""
    script = (
        f'eval "$({VARIABLE}=bash_source qworker)"; COMP_WORDS=(qworker call tasks.m); COMP_CWORD=2; '
        '_qworker_completion qworker; echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**environment, "PATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("tasks.multiply\n", "")
