"""The order in which xdist's processes run the tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.conftest import REPOSITORY, mixed


def test_modules_of_all_directories_are_mixed() -> None:
    def items(directory: str, **sizes: int) -> list[Any]:
        return [
            SimpleNamespace(path=REPOSITORY / "tests" / directory / f"{name}.py", name=f"{name}{number}")
            for name, size in sizes.items()
            for number in range(size)
        ]

    found = mixed([*items("acceptance", a=2, b=2), *items("unit", c=1, d=1, e=1, f=1)])
    assert [item.name for item in found] == ["a0", "a1", "c0", "d0", "b0", "b1", "e0", "f0"]
