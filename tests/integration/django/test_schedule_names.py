"""Names of schedules are unique, even if created concurrently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.django_places import KINDS, Place

ROUNDS = 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in KINDS),
        ("postgresql", {"isolation_level": 3}),
        ("mysql", {"isolation_level": "repeatable read"}),
    ],
    ids=str,
)
def test_one_of_many_processes_creates_a_schedule(
    places: Callable[[str], Place], kind: str, options: dict[str, Any]
) -> None:
    """Even if a transaction reads an older snapshot."""
    place = places(kind)
    place.django["OPTIONS"] = options
    names, ends, left = place.running("django_schedule_names.py", rounds=ROUNDS)
    assert names == [f"nightly {turn}" for turn in range(ROUNDS)]
    assert ends == ["IntegrityError"] * 3 * ROUNDS + ["made"] * ROUNDS
    assert left == 0, "rows that only hold the name are left"
