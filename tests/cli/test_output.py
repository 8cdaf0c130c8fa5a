"""Output errors: full disks, closed descriptors, terminals without colors."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from qworker.cli.main import main
from tests.support.commands import COMMANDS

ARGUMENTS = {
    "task": "tasks.add 10s", "arguments": "1 2", "pairs": "a=b", "directory": "spool", "directories": "spool",
    "from_url": "sqlite:///", "to_url": "sqlite:///new.db", "kind": "systemd", "names": "x", "named": "",
    "tags": "1", "tag": "1", "destination": "other", "address": "127.0.0.1:1",
}  # fmt: skip
"""Values for the arguments of commands, by name."""
OPTIONS = {"spool watch": "--count 1", "call": "--args [] add 1 2", "config show": "", "shell": "-c print(1)"}
ENDLESS = {"start", "beat", "spool run"}
"""Commands that run until they are stopped, and write to the log."""


def words(name: str) -> list[str]:
    """A command line for the command *name*; it need not succeed."""
    arguments = [p.name or "" for p in COMMANDS[name].params if isinstance(p, click.Argument)]
    given = OPTIONS.get(name) or " ".join(ARGUMENTS.get(argument, "x") for argument in arguments)
    return [*name.split(), *given.split(), *(["--yes"] if "--yes" in options(COMMANDS[name]) else [])]


def options(command: click.Command) -> list[str]:
    return [option for p in command.params if isinstance(p, click.Option) for option in p.opts]


EACH = pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ENDLESS))


@EACH
def test_full_disk_is_a_one_line_error(tasks: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        monkeypatch.setattr(sys, "stderr", said)
        with pytest.raises(SystemExit) as end:
            main(words(name))
        with contextlib.suppress(OSError):  # the buffered rest
            full.flush()
    assert "Traceback" not in said.getvalue()
    assert end.value.code != 0 or "No space left" not in said.getvalue()


@EACH
def test_closed_output_is_not_an_error(tasks: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit):
        main(words(name))


def test_failed_write_is_reported(tasks: Path, shell) -> None:  # type: ignore[no-untyped-def]
    with open("/dev/full", "w") as full:
        done = shell("config", "show", capture_output=False, stdout=full, stderr=-1)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "Error: cannot write the output: No space left on device"


@pytest.mark.parametrize(
    ("environment", "colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_no_color_and_dumb_terminals_disable_colors(
    tasks: Path, environment: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    result = CliRunner(env=environment).invoke(main, ["doctor"], color=True)
    assert ("\x1b[" in result.output) == colored
