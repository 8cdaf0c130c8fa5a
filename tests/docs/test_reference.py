"""The reference says what the code says, and leaves nothing out."""

from __future__ import annotations

import subprocess
import sys

from qworker import signals, transports
from qworker.tasks import options
from qworker.transports.capabilities import OTHER, capabilities_of
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


def test_every_signal_has_its_line() -> None:
    page = (REPOSITORY / "docs" / "reference" / "signals.md").read_text(encoding="utf-8")
    names = [found.name for found in vars(signals).values() if isinstance(found, signals.Signal)]
    assert names
    assert not [name for name in names if f"| `{name}` |" not in page]


def test_every_task_option_is_explained() -> None:
    assert options.MEANING.keys() == options.OPTIONS.keys()


def test_every_broker_has_its_promises() -> None:
    assert not [scheme for scheme in transports.SCHEMES if capabilities_of(f"{scheme}://h") is OTHER]
