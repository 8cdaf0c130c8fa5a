"""What some code imports, seen from a new interpreter.

Comes from:  tests that hold a start to what it needs.
Goes to:     a Python of its own.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import PATIENCE


def loaded_by(code: str) -> set[str]:
    """Return the names of the modules that are there when *code* has run."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
