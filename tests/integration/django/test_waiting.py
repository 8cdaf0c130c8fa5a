"""Waiting for tasks: told where the database can tell, else two looks a second; on three databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import require
from tests.support.django_places import KINDS, Place

TELLING = ("sqlite", "postgresql")


WHAT = (
    "told", "coroutines", "looks", "in_transaction", "kept_connections", "many_at_once", "forked", "cached",
)  # fmt: skip
Wait = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def wait(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wait]:
    """What came of one thing that a process did on a database of a kind; it does all of them."""
    made: dict[str, tuple[Place, dict[str, Any]]] = {}

    def of(kind: str, what: str) -> Any:
        if kind not in made:
            place = Place(kind, tmp_path_factory.mktemp("waiting"))
            do = [each for each in WHAT if kind in TELLING or each not in ("told", "many_at_once")]
            made[kind] = place, place.running("django_waiting.py", do=do)
        return made[kind][1][what]

    yield of
    for place, _ in made.values():
        place.clear()


@pytest.mark.parametrize("kind", TELLING)
def test_who_waits_is_told_of_an_id_a_name_and_a_group(wait: Wait, kind: str) -> None:
    assert wait(kind, "told") == [2.0, True, [3.0, 4.0]]


def test_redis_tells_where_the_database_of_the_results_cannot(tmp_path: Path) -> None:
    place = Place("mysql", tmp_path)
    cluster = {"redis": require("redis"), "name": place.name}
    try:
        found = place.running("django_waiting.py", do=["told", "many_at_once", "forked"], cluster=cluster)
        assert found == {"told": [2.0, True, [3.0, 4.0]], "many_at_once": 2, "forked": 0}
    finally:
        place.clear()


@pytest.mark.parametrize("kind", TELLING)
def test_who_waits_is_told_of_one_of_many_rows(wait: Wait, kind: str) -> None:
    assert wait(kind, "many_at_once") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_looks_more_often_than_twice_a_second(wait: Wait, kind: str) -> None:
    # And one before the wait and one after it, of each that waits, and two when it begins.
    (one, took), (ten, took_ten) = wait(kind, "looks")
    assert one <= 2 * took + 4
    assert ten <= 2 * took_ten + 10 * 2 + 10 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_began_before_keeps_nobody_waiting(wait: Wait, kind: str) -> None:
    assert wait(kind, "in_transaction") == [[2.0, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_coroutines_wait_without_a_thread_for_each(wait: Wait, kind: str) -> None:
    assert wait(kind, "coroutines") == [True, True, 40, True, None]


@pytest.mark.parametrize("kind", KINDS)
def test_connections_of_who_waits_are_left_alone(wait: Wait, kind: str) -> None:
    assert wait(kind, "kept_connections") == [2.0, True, 1, True]


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_waits_by_itself(wait: Wait, kind: str) -> None:
    assert wait(kind, "forked") == 0


def test_the_cache_is_looked_at_twice_a_second(wait: Wait) -> None:
    first, coroutine = wait("sqlite", "cached")
    assert first <= 3
    assert coroutine <= 3
