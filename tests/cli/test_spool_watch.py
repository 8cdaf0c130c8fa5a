"""spool watch: JSON lines, rows and screen; directories that disappear, keys, and Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qworker.cli.spool import watch
from qworker.spooler.files.writing import Writer
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


def test_json_lines(run, spool: Path) -> None:
    Writer(spool).write({"n": 1})
    result = run("spool", "watch", str(spool), "--json", "--count", "2", "--every", "0.05")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = map(json.loads, result.stdout.splitlines())
    assert {key: first[key] for key in ("directory", "due", "running", "delayed", "dead", "new")} == {
        "directory": str(spool),
        "due": 1,
        "running": 0,
        "delayed": 0,
        "dead": 0,
        "new": None,
    }
    assert (second["new"], second["done"], second["complete"]) == (0, 0, True)
    assert second["time"] > first["time"]


def test_rows_without_a_terminal(run, spool: Path, tmp_path: Path) -> None:
    other = tmp_path / "more"
    other.mkdir()
    result = run("spool", "watch", str(spool), str(other), str(spool), "--count", "1")
    head, *rows = result.stdout.splitlines()
    assert head.split() == [
        "directory",
        "due",
        "running",
        "delayed",
        "dead",
        "new/s",
        "done/s",
        "oldest",
        "next",
    ]
    assert [row.split() for row in rows] == [[str(spool), *"0000"], [str(other), *"0000"]]
    assert "\x1b" not in result.stdout


def test_missing_directory_is_refused(run, tmp_path: Path) -> None:
    result = run("spool", "watch", str(tmp_path / "missing"))
    assert result.exit_code != 0
    assert "cannot be opened" in result.stderr


def test_directory_that_disappears_is_reported_and_waited_for(
    run, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It disappears after the first look and exists again after the second."""
    steps: list[Callable[[], object]] = [lambda: shutil.rmtree(spool), spool.mkdir, lambda: None]
    look = watch._look
    monkeypatch.setattr(watch, "_look", lambda counter: (look(counter), steps.pop(0)())[0])
    result = run("spool", "watch", str(spool), "--json", "--count", "3", "--every", "0")
    there, gone, back = map(json.loads, result.stdout.splitlines())
    assert (there["due"], gone["error"], back["due"]) == (0, "No such file or directory", 0)
    assert "due" not in gone
    assert "new" not in gone


def in_terminal(spool: Path) -> tuple[int, int]:
    """A watching process in its own terminal: process id and the terminal's file descriptor."""
    process, terminal = pty.fork()
    if process == 0:
        command = [sys.executable, "-m", "qworker", "spool", "watch", str(spool)]
        try:
            os.chdir(Path(__file__).parents[2])
            os.execv(sys.executable, command)
        finally:
            os._exit(99)
    return process, terminal


@pytest.mark.parametrize("how", ["q", "ctrl-c"])
def test_q_and_ctrl_c_end_watching_without_a_traceback(spool: Path, how: str) -> None:
    Writer(spool).write({"n": 1})
    process, terminal = in_terminal(spool)
    seen = b""
    try:
        while b"q ends." not in seen:
            seen += os.read(terminal, 10_000)
        os.write(terminal, b"q" if how == "q" else b"\x03")
        while True:
            try:
                part = os.read(terminal, 10_000)
            except OSError:  # the process has ended
                break
            if not part:
                break
            seen += part
        _, status = os.waitpid(process, 0)
        process = 0
    finally:
        os.close(terminal)
        if process:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"Traceback" not in seen
    assert str(spool).encode() in seen


def test_closed_output_pipe_ends_watching(spool: Path, environment: dict[str, str]) -> None:
    """As in `qworker spool watch … | head -1`."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "qworker", "spool", "watch", str(spool), "--json", "--every", "0.05"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert watching.stderr is not None
    assert json.loads(watching.stdout.readline())["due"] == 0
    watching.stdout.close()
    until(lambda: watching.poll() is not None, say=lambda: "for the command to end")
    assert "Traceback" not in watching.stderr.read()
    watching.stderr.close()
    watching.wait(PATIENCE)
