"""spool watch: lines, rows and a screen, with directories that vanish, keys, and ctrl-c."""

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
def place(tmp_path: Path) -> Path:
    path = tmp_path / "jobs"
    path.mkdir()
    return path


def test_lines_of_json(run, place: Path) -> None:
    Writer(place).write({"n": 1})
    result = run("spool", "watch", str(place), "--json", "--count", "2", "--every", "0.05")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second = map(json.loads, result.stdout.splitlines())
    assert {key: first[key] for key in ("directory", "due", "running", "delayed", "dead", "new")} == {
        "directory": str(place),
        "due": 1,
        "running": 0,
        "delayed": 0,
        "dead": 0,
        "new": None,
    }
    assert (second["new"], second["done"], second["complete"]) == (0, 0, True)
    assert second["time"] > first["time"]


def test_rows_where_there_is_no_terminal(run, place: Path, tmp_path: Path) -> None:
    other = tmp_path / "more"
    other.mkdir()
    result = run("spool", "watch", str(place), str(other), str(place), "--count", "1")
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
    assert [row.split() for row in rows] == [[str(place), *"0000"], [str(other), *"0000"]]
    assert "\x1b" not in result.stdout


def test_what_is_not_there_is_refused(run, tmp_path: Path) -> None:
    result = run("spool", "watch", str(tmp_path / "missing"))
    assert result.exit_code != 0
    assert "cannot be opened" in result.stderr


def test_a_directory_that_vanishes_is_told_of_and_waited_for(
    run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It vanishes after the first look and is there again after the second."""
    steps: list[Callable[[], object]] = [lambda: shutil.rmtree(place), place.mkdir, lambda: None]
    look = watch._look
    monkeypatch.setattr(watch, "_look", lambda counter: (look(counter), steps.pop(0)())[0])
    result = run("spool", "watch", str(place), "--json", "--count", "3", "--every", "0")
    there, gone, back = map(json.loads, result.stdout.splitlines())
    assert (there["due"], gone["error"], back["due"]) == (0, "No such file or directory", 0)
    assert "due" not in gone
    assert "new" not in gone


def in_terminal(place: Path) -> tuple[int, int]:
    """A process that watches in a terminal of its own: its id, and what we see and type there."""
    process, terminal = pty.fork()
    if process == 0:
        command = [sys.executable, "-m", "qworker", "spool", "watch", str(place)]
        try:
            os.chdir(Path(__file__).parents[2])
            os.execv(sys.executable, command)
        finally:
            os._exit(99)
    return process, terminal


@pytest.mark.parametrize("how", ["q", "ctrl-c"])
def test_q_and_ctrl_c_end_it_without_a_traceback(place: Path, how: str) -> None:
    Writer(place).write({"n": 1})
    process, terminal = in_terminal(place)
    seen = b""
    try:
        while b"q ends." not in seen:
            seen += os.read(terminal, 10_000)
        os.write(terminal, b"q" if how == "q" else b"\x03")
        while True:
            try:
                part = os.read(terminal, 10_000)
            except OSError:  # it has ended
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
    assert str(place).encode() in seen


def test_who_reads_has_gone(place: Path, environment: dict[str, str]) -> None:
    """As with `| head -1`."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "qworker", "spool", "watch", str(place), "--json", "--every", "0.05"],
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
