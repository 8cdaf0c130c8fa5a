"""What a scheduler says of its entries, by which one with others is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from qworker import __version__
from qworker.beat import crontab
from qworker.beat.catalog import SETTINGS, about, catalog


class Own:
    def next(self, after: datetime) -> datetime | None:
        return None

    previous = next


def said(**entry: Any) -> str:
    return about(catalog({"a": (SETTINGS, {"task": "tasks.add", "schedule": 5, **entry})}, ()))


def test_the_version_is_said() -> None:
    assert json.loads(about({}))["qworker"] == __version__


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"schedule": Own()},
        {"schedule": "no"},
        {"args": [object()]},
        {"kwargs": {"a": {1, "b", None}}},
        {"kwargs": {"a": {1: 2, "b": 3}}},
        {"start": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_the_same_entries_say_the_same(entry: dict[str, Any]) -> None:
    again = {name: Own() if isinstance(value, Own) else value for name, value in entry.items()}
    if "args" in entry:
        again = {"args": [object()]}
    assert said(**entry) == said(**again)


def test_other_entries_say_something_else() -> None:
    others = [
        about({}),
        said(),
        said(schedule=6),
        said(schedule=crontab(minute=1)),
        said(schedule=crontab(minute=1, tz="UTC")),
        said(schedule="no"),
        said(task="tasks.sub"),
        said(args=[1]),
        said(start=datetime(2026, 1, 1, tzinfo=UTC)),
        said(start=datetime(2027, 1, 1, tzinfo=UTC)),
        said(enabled=False),
        said(kwargs={"a": 1}),
        said(options={"queue": "a"}),
        said(options={"queue": "b"}),
        said(jitter=1),
        said(expires=1),
        said(enabled=False, schedule=Own()),
        said(schedule=Own()),
    ]
    assert len(set(others)) == len(others)
