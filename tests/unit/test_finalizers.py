"""What closes files at its end does so too when an interrupt came while it was made: then it has none."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import qworker

ROOT = Path(qworker.__file__).parent
FOUND = [
    value
    for path in sorted(ROOT.rglob("*.py"))
    if "def __del__" in path.read_text()
    for value in vars(
        importlib.import_module(".".join(("qworker", *path.relative_to(ROOT).with_suffix("").parts)))
    ).values()
    if isinstance(value, type) and "__del__" in vars(value)
]


@pytest.mark.parametrize("made", FOUND)
def test_what_was_not_made_ends_in_silence(made: type) -> None:
    made.__new__(made).__del__()  # type: ignore[attr-defined]


def test_there_are_some() -> None:
    assert len(FOUND) >= 2
