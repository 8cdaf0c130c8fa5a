"""Finalizers tolerate objects whose constructor was interrupted, and that lack their attributes."""

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


@pytest.mark.parametrize("kind", FOUND)
def test_finalizer_of_an_uninitialised_object_is_silent(kind: type) -> None:
    kind.__new__(kind).__del__()  # type: ignore[attr-defined]


def test_finalizers_are_found() -> None:
    assert len(FOUND) >= 2
