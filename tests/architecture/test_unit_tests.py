"""Unit tests neither sleep nor patch what is ours, but for those listed. The lists may only get shorter."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.architecture.source import REPOSITORY

UNIT = REPOSITORY / "tests" / "unit"
SLEEPS = {
    "test_interrupts.py": 2,  # a handler's error cuts them short
    "test_result.py": 3,  # a real loop's turns, and a promise that must not be kept twice
    "test_result_watcher.py": 1,  # threads that take turns
}
"""Calls of a sleep of more than 0 seconds, by file."""
PATCHES = {
    "test_assembly.py": 2,  # any part of a whole worker may fail to stop
    "test_execution.py": 3,  # a result store that fails
    "test_middleware.py": 1,  # middleware that answers by itself
    "test_outcomes.py": 1,  # each column of the table is read
    "test_result_watcher.py": 3,  # what happens between two lines
    "test_result_writer.py": 2,  # a result store that fails
    "test_settlements.py": 2,  # a portion of 16 MiB; what a fake refuses
}
"""Replaced attributes of what is ours, by file: with monkeypatch, or by an assignment."""
THEIRS = ("os", "sys.modules", "redis", "pymysql", "psycopg", "'tempfile")
"""How the first argument of a patch begins that replaces what is not ours."""


REPLACED = re.compile(r"^ +(?:\w+\.)+\w+ = (?:lambda.*|\w+  # type: ignore\[method-assign.*)$", re.MULTILINE)
"""A line that replaces a method."""


def sleeps(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0"


def patches(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    return function in ("monkeypatch.setattr", "monkeypatch.setitem") and not ast.unparse(
        call.args[0]
    ).startswith(THEIRS)


def test_who_sleeps_and_who_patches_is_listed() -> None:
    sleeping: Counter[str] = Counter()
    patching: Counter[str] = Counter()
    for path in UNIT.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        sleeping[path.name] = sum(map(sleeps, calls))
        patching[path.name] = sum(map(patches, calls)) + len(REPLACED.findall(text))
    assert +sleeping == SLEEPS
    assert +patching == PATCHES
