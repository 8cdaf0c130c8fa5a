"""The modules that some code imports, in a new interpreter.

Comes from:  tests that check which modules are imported.
Goes to:     a separate Python process.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import PATIENCE


def loaded_by(code: str) -> set[str]:
    """Return the names of the modules that are loaded after *code* has run."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
