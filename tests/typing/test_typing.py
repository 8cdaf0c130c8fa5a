"""mypy and pyright refuse exactly the marked lines of calls.py."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CALLS = Path(__file__).with_name("calls.py")
MARKED = {
    number: mark[1]
    for number, line in enumerate(CALLS.read_text(encoding="utf-8").splitlines(), start=1)
    if (mark := re.search(r"# error: ([\w-]+)", line)) and not line.startswith('"')
}


def test_mypy_refuses_the_marked_lines_and_no_other(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(tmp_path),
        str(CALLS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CALLS.parents[2])
    found = {
        int(match[1]): match[2]
        for match in re.finditer(r"calls\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    }
    assert found == MARKED, done.stdout + done.stderr


def test_pyright_refuses_the_same_lines() -> None:
    pyright = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed here (pip install pyright); mypy has checked the same lines")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CALLS.parents[2], timeout=110)
    try:
        found = json.loads(done.stdout)["generalDiagnostics"]
    except ValueError:
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip()[:200]}")
    lines = {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}
    assert lines == set(MARKED), done.stdout
