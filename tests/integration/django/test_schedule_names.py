"""A schedule's name is its own, whoever else makes one at the same moment."""

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
def test_of_several_processes_one_makes_it(
    places: Callable[[str], Place], kind: str, options: dict[str, Any]
) -> None:
    """Also where a transaction sees what was there when it began."""
    place = places(kind)
    place.django["OPTIONS"] = options
    names, ends, left = place.running("django_schedule_names.py", rounds=ROUNDS)
    assert names == [f"nightly {turn}" for turn in range(ROUNDS)]
    assert ends == ["IntegrityError"] * 3 * ROUNDS + ["made"] * ROUNDS
    assert left == 0, "rows that only hold the name are left"
