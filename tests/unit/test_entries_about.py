"""about(): describes the entries of a scheduler, so that schedulers with different entries can be found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from qworker import __version__
from qworker.beat import crontab
from qworker.beat.catalog import SETTINGS, about, catalog


class CustomSchedule:
    def next(self, after: datetime) -> datetime | None:
        return None

    previous = next


def description(**entry: Any) -> str:
    return about(catalog({"a": (SETTINGS, {"task": "tasks.add", "schedule": 5, **entry})}, ()))


def test_description_has_the_version() -> None:
    assert json.loads(about({}))["qworker"] == __version__


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"schedule": CustomSchedule()},
        {"schedule": "no"},
        {"args": [object()]},
        {"kwargs": {"a": {1, "b", None}}},
        {"kwargs": {"a": {1: 2, "b": 3}}},
        {"start": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_equal_entries_have_equal_descriptions(entry: dict[str, Any]) -> None:
    again = {
        name: CustomSchedule() if isinstance(value, CustomSchedule) else value
        for name, value in entry.items()
    }
    if "args" in entry:
        again = {"args": [object()]}
    assert description(**entry) == description(**again)


def test_different_entries_have_different_descriptions() -> None:
    others = [
        about({}),
        description(),
        description(schedule=6),
        description(schedule=crontab(minute=1)),
        description(schedule=crontab(minute=1, tz="UTC")),
        description(schedule="no"),
        description(task="tasks.sub"),
        description(args=[1]),
        description(start=datetime(2026, 1, 1, tzinfo=UTC)),
        description(start=datetime(2027, 1, 1, tzinfo=UTC)),
        description(enabled=False),
        description(kwargs={"a": 1}),
        description(options={"queue": "a"}),
        description(options={"queue": "b"}),
        description(jitter=1),
        description(expires=1),
        description(enabled=False, schedule=CustomSchedule()),
        description(schedule=CustomSchedule()),
    ]
    assert len(set(others)) == len(others)
