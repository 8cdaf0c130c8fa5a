"""mypy and pyright refuse exactly the marked lines of calls.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

CALLS = Path(__file__).with_name("calls.py")
MARKED = {
    number: mark[1]
    for number, line in enumerate(CALLS.read_text(encoding="utf-8").splitlines(), start=1)
    if (mark := re.search(r"# error: ([\w-]+)", line)) and not line.startswith('"')
}


def test_mypy_refuses_exactly_the_marked_lines() -> None:
    """Uses the cache of earlier runs on the package: without a cache it takes a minute."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CALLS.parents[2])
    found = {
        int(match[1]): match[2]
        for match in re.finditer(r"calls\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    }
    assert found == MARKED, done.stdout + done.stderr


def test_pyright_refuses_the_same_lines() -> None:
    """With basedpyright, which includes Node and applies pyright's rules in pyright's mode."""
    command = [
        *(sys.executable, "-m", "basedpyright", "--outputjson"),
        *("--pythonpath", sys.executable, "--project", str(CALLS.parent)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CALLS.parents[2], timeout=110)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}
    assert lines == set(MARKED), done.stdout
