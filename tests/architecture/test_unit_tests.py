"""Unit tests neither sleep nor patch our own code, except those listed. The lists may only get shorter."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.architecture.source import REPOSITORY

UNIT = REPOSITORY / "tests" / "unit"
SLEEPS = {
    "test_interrupts.py": 2,  # an error raised by a signal handler interrupts them
    "test_result.py": 3,  # iterations of a real event loop, and a callback that must not run twice
    "test_result_watcher.py": 1,  # threads that alternate
}
"""Calls of sleep() with more than 0 seconds, by file."""
PATCHES = {
    "test_assembly.py": 2,  # any component of a whole worker may fail to stop
    "test_execution.py": 3,  # a result store that fails
    "test_middleware.py": 1,  # middleware that returns its own answer
    "test_outcomes.py": 1,  # each column of the table is read
    "test_result_watcher.py": 3,  # what happens between two statements
    "test_result_writer.py": 2,  # a result store that fails
    "test_settlements.py": 2,  # a batch of 16 MiB; an operation that a fake refuses
}
"""Attributes of our code that are replaced, by file: with monkeypatch or by assignment."""
THEIRS = ("os", "sys.modules", "redis", "pymysql", "psycopg", "'tempfile")
"""Prefixes of the first argument of a patch that replaces foreign code."""


REPLACED = re.compile(r"^ +(?:\w+\.)+\w+ = (?:lambda.*|\w+  # type: ignore\[method-assign.*)$", re.MULTILINE)
"""A line that replaces a method."""


def sleeps(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0"


def patches(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    return function in ("monkeypatch.setattr", "monkeypatch.setitem") and not ast.unparse(
        call.args[0]
    ).startswith(THEIRS)


def test_unit_tests_that_sleep_or_patch_are_listed() -> None:
    sleeping: Counter[str] = Counter()
    patching: Counter[str] = Counter()
    for path in UNIT.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        sleeping[path.name] = sum(map(sleeps, calls))
        patching[path.name] = sum(map(patches, calls)) + len(REPLACED.findall(text))
    assert +sleeping == SLEEPS
    assert +patching == PATCHES
