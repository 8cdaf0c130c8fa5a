"""Groups in the cache: members that come again, are cut short, or are not kept."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache

from qworker.django.execution import cached
from qworker.django.execution.calls import package_of
from qworker.django.execution.running import note
from qworker.errors import BackendError


@pytest.fixture(autouse=True)
def _empty(cluster: Any) -> None:
    cluster(name="default", orm="default")
    caches["default"].clear()


def member(number: int) -> dict[str, Any]:
    options = {"id": f"{number:032}", "group": "g", "cached": True}
    package = package_of("math.sqrt", (4,), {}, options)
    note(package, True, number)
    return package


def test_members_have_places_of_their_own() -> None:
    assert [cached.put(member(number)) for number in range(3)] == [1, 2, 3]
    assert [task.result for task in cached.members("g")] == [0, 1, 2]


def test_a_member_that_comes_again_is_told_how_many_there_are() -> None:
    """It may have been the last one, and its process was killed before it could collect them."""
    for number in range(3):
        cached.put(member(number))
    assert cached.put(member(2)) == 3
    assert len(cached.member_ids("g")) == 3


def test_a_counter_that_is_behind_loses_nobody() -> None:
    """Two members end at once, and the slower one writes the lower number."""
    for number in range(3):
        cached.put(member(number))
    cached.store().set(cached.key("g", "count"), 1)
    assert len(cached.member_ids("g")) == 3
    assert cached.put(member(3)) == 4
    assert cached.delete_group("g") == 4
    assert not cached.member_ids("g")


def test_what_others_have_put_there_costs_no_other_member() -> None:
    for number in range(3):
        cached.put(member(number))
    cached.store().set(cached.key(f"{1:032}"), "no package")
    cached.store().set(cached.key(f"{2:032}"), 7)
    assert [task.result for task in cached.members("g")] == [0]


def test_a_cache_that_keeps_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in a table that is locked, which drops what it is given."""
    monkeypatch.setattr(LocMemCache, "set", lambda *_, **__: None)
    with pytest.raises(BackendError, match="was not stored"):
        cached.put(member(0))
