"""The reference pages agree with the code and are complete."""

from __future__ import annotations

import subprocess
import sys

import pytest

from docs import generate
from qworker import CallOptions, TaskOptions, signals, transports
from qworker.canvas.options import RetryOptions, SignatureOptions
from qworker.transports.capabilities import capabilities_of
from qworker.transports.kombu.broker import OTHER
from tests.docs.pages import REPOSITORY


def test_generated_pages_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )
    assert done.returncode == 0, f"{done.stderr}\nrun: python docs/generate.py"


def test_command_page_contains_the_help_epilogs() -> None:
    """They contain exit codes and next steps."""
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    commands = dict(generate.walk("qworker", generate.command_line))
    epilogs = {path: " ".join(command.epilog.split()) for path, command in commands.items() if command.epilog}
    assert "qworker result" in epilogs
    assert not [path for path, words in epilogs.items() if words not in page]


def test_every_signal_is_documented() -> None:
    page = (REPOSITORY / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
    names = [found.name for found in vars(signals).values() if isinstance(found, signals.Signal)]
    assert names
    assert not [name for name in names if f"| `{name}` |" not in page]


@pytest.mark.parametrize("kind", [TaskOptions, CallOptions, RetryOptions, SignatureOptions])
def test_every_option_has_a_docstring(kind: type) -> None:
    """The page and editors show it: a string below the key."""
    lines = generate.option_lines(kind)
    assert lines.keys() == kind.__annotations__.keys()
    assert not [name for name, words in lines.items() if not words[0].isupper() and not words[0].isdigit()]
    assert not [name for name, words in lines.items() if not words.endswith(".")]


def test_every_broker_declares_capabilities() -> None:
    assert not [scheme for scheme in transports.SCHEMES if capabilities_of(f"{scheme}://h") is OTHER]
