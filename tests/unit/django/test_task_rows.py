"""Rows of tasks that are larger than the max_allowed_packet of MySQL."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from qworker.django.transports import task_rows
from qworker.errors import EncodeError

MOST = 1_000_000


class Server:
    """A fake MySQL connection that only returns max_allowed_packet."""

    vendor, alias = "mysql", "small"

    def __init__(self) -> None:
        self.ops = connections["default"].ops

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, query: str) -> None:
        assert query == "SELECT @@max_allowed_packet"

    def fetchone(self) -> tuple[int]:
        return (MOST,)


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_rows, "connections", {"small": Server()})


def row(success: bool, arguments: int, package: int) -> dict[str, Any]:
    now = timezone.now()
    values = {
        "id": "1" * 32, "name": "n", "func": "f", "args": (b"a" * arguments,), "kwargs": {}, "result": "r",
        "started": now, "stopped": now, "success": success, "package": "p" * package,
    }  # fmt: skip
    return task_rows.values_of(task_rows.pack(values, "small"))


@pytest.mark.parametrize("success", [True, False])
def test_row_that_is_too_large_drops_its_package(success: bool) -> None:
    found = row(success, 500_000, 500_000)
    assert (found["args"], found["success"], found["package"]) == ((b"a" * 500_000,), success, "")
    assert row(success, 500_000, 100_000)["package"] == "p" * 100_000


def test_row_too_large_without_its_package_is_reduced_or_rejected() -> None:
    found = row(False, 900_000, 900_000)
    assert (found["result"], found["package"]) == ("r", "")
    assert isinstance(found["args"][0], str)
    with pytest.raises(EncodeError, match="exceed the"):
        row(True, 900_000, 900_000)
