"""A schedule's name is its own, whoever else makes one at the same moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.django_places import KINDS, Place

ROUNDS = 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_of_several_processes_one_makes_it(places: Callable[[str], Place], kind: str) -> None:
    names, ends, left = places(kind).running("django_schedule_names.py", rounds=ROUNDS)
    assert names == [f"nightly {turn}" for turn in range(ROUNDS)]
    assert ends == ["IntegrityError"] * 3 * ROUNDS + ["made"] * ROUNDS
    assert left == 0, "rows that only hold the name are left"
