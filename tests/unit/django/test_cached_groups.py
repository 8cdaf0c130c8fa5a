"""Groups in the cache: repeated members, damaged entries, and a cache that keeps nothing."""

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


def test_members_are_stored_separately() -> None:
    assert [cached.put(member(number)) for number in range(3)] == [1, 2, 3]
    assert [task.result for task in cached.members("g")] == [0, 1, 2]


def test_repeated_member_gets_the_current_count() -> None:
    """It may be the last member, and its process may have been killed before it collected the group."""
    for number in range(3):
        cached.put(member(number))
    assert cached.put(member(2)) == 3
    assert len(cached.member_ids("g")) == 3


def test_outdated_counter_loses_no_members() -> None:
    """As when two members end at once, and the slower one writes the lower count."""
    for number in range(3):
        cached.put(member(number))
    cached.store().set(cached.key("g", "count"), 1)
    assert len(cached.member_ids("g")) == 3
    assert cached.put(member(3)) == 4
    assert cached.delete_group("g") == 4
    assert not cached.member_ids("g")


def test_foreign_cache_entries_do_not_affect_other_members() -> None:
    for number in range(3):
        cached.put(member(number))
    cached.store().set(cached.key(f"{1:032}"), "no package")
    cached.store().set(cached.key(f"{2:032}"), 7)
    assert [task.result for task in cached.members("g")] == [0]


def test_cache_that_keeps_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a database cache does while its table is locked."""
    monkeypatch.setattr(LocMemCache, "set", lambda *_, **__: None)
    with pytest.raises(BackendError, match="was not stored"):
        cached.put(member(0))
