"""The reference says what the code says, and leaves nothing out."""

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


def test_pages_made_from_code_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )
    assert done.returncode == 0, f"{done.stderr}\nrun: python docs/generate.py"


def test_what_help_says_below_the_options_is_on_the_page() -> None:
    """Exit codes stand there, and what to do next."""
    page = (REPOSITORY / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    commands = dict(generate.walk("qworker", generate.command_line))
    told = {path: " ".join(command.epilog.split()) for path, command in commands.items() if command.epilog}
    assert "qworker result" in told
    assert not [path for path, words in told.items() if words not in page]


def test_every_signal_has_its_line() -> None:
    page = (REPOSITORY / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
    names = [found.name for found in vars(signals).values() if isinstance(found, signals.Signal)]
    assert names
    assert not [name for name in names if f"| `{name}` |" not in page]


@pytest.mark.parametrize("kind", [TaskOptions, CallOptions, RetryOptions, SignatureOptions])
def test_every_option_has_a_line_of_its_own(kind: type) -> None:
    """Which the page has, and which an editor shows: a text below the key."""
    lines = generate.option_lines(kind)
    assert lines.keys() == kind.__annotations__.keys()
    assert not [name for name, words in lines.items() if not words[0].isupper() and not words[0].isdigit()]
    assert not [name for name, words in lines.items() if not words.endswith(".")]


def test_every_broker_has_its_promises() -> None:
    assert not [scheme for scheme in transports.SCHEMES if capabilities_of(f"{scheme}://h") is OTHER]
