"""Waiting for tasks on three databases: by notification where available, otherwise two polls a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import require
from tests.support.django_places import KINDS, Place

NOTIFYING = ("sqlite", "postgresql")


WHAT = (
    "told", "coroutines", "looks", "in_transaction", "kept_connections", "many_at_once", "forked", "cached",
)  # fmt: skip
Wait = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def wait(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wait]:
    """Return a function that returns the outcome of one step. One process runs all steps on each database."""
    made: dict[str, tuple[Place, dict[str, Any]]] = {}

    def of(kind: str, what: str) -> Any:
        if kind not in made:
            place = Place(kind, tmp_path_factory.mktemp("waiting"))
            do = [each for each in WHAT if kind in NOTIFYING or each not in ("told", "many_at_once")]
            made[kind] = place, place.running("django_waiting.py", do=do)
        return made[kind][1][what]

    yield of
    for place, _ in made.values():
        place.clear()


@pytest.mark.parametrize("kind", NOTIFYING)
def test_waiting_caller_is_notified_of_id_name_and_group(wait: Wait, kind: str) -> None:
    assert wait(kind, "told") == [2.0, True, [3.0, 4.0]]


def test_redis_broker_notifies_if_the_database_cannot(tmp_path: Path) -> None:
    place = Place("mysql", tmp_path)
    cluster = {"redis": require("redis"), "name": place.name}
    try:
        found = place.running("django_waiting.py", do=["told", "many_at_once", "forked"], cluster=cluster)
        assert found == {"told": [2.0, True, [3.0, 4.0]], "many_at_once": 2, "forked": 0}
    finally:
        place.clear()


@pytest.mark.parametrize("kind", NOTIFYING)
def test_waiting_caller_is_notified_of_one_of_many_rows(wait: Wait, kind: str) -> None:
    assert wait(kind, "many_at_once") == 2


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_polls_at_most_twice_a_second(wait: Wait, kind: str) -> None:
    # Each waiting call also polls before and after its wait, and twice at the start.
    (one, took), (ten, took_ten) = wait(kind, "looks")
    assert one <= 2 * took + 4
    assert ten <= 2 * took_ten + 10 * 2 + 10 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_in_an_older_transaction_finds_the_result(wait: Wait, kind: str) -> None:
    assert wait(kind, "in_transaction") == [[2.0, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_coroutines_share_a_thread(wait: Wait, kind: str) -> None:
    assert wait(kind, "coroutines") == [True, True, 40, True, None]


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_keeps_the_callers_connections(wait: Wait, kind: str) -> None:
    assert wait(kind, "kept_connections") == [2.0, True, 1, True]


@pytest.mark.parametrize("kind", KINDS)
def test_forked_child_can_wait(wait: Wait, kind: str) -> None:
    assert wait(kind, "forked") == 0


def test_cache_is_polled_twice_a_second(wait: Wait) -> None:
    first, coroutine = wait("sqlite", "cached")
    assert first <= 3
    assert coroutine <= 3
