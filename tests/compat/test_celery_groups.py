"""ResultSet and GroupResult compared with Celery's for the same stored results: what each method returns
or raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery", reason="`tox -e compat-celery` installs it")

from qworker.results.result import result_from_tuple
from tests.support.beside_celery import BESIDE_CELERY, Pair, results_in

pytestmark = BESIDE_CELERY


@pytest.fixture(params=["redis", "sqlite", "file", "memcached"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with (
        results_in(request.param, tmp_path) as results,
        closing(Pair(broker_url="memory://", **results)) as pair,
    ):
        yield pair


def store(pair: Pair, **ended: Any) -> None:
    """*ended*: the value or exception for each id."""
    for task_id, value in ended.items():
        if isinstance(value, BaseException):
            pair.theirs.backend.mark_as_failure(task_id, value)
        else:
            pair.theirs.backend.store_result(task_id, value, "SUCCESS")


STORED = {
    "all": {"a": 1, "b": {"x": [2]}, "c": None},
    "one failed": {"a": 1, "b": KeyError("no"), "c": 3},
    "one not yet": {"a": 1, "c": 3},
    "one failed and one not yet": {"b": KeyError("no"), "c": 3},
    "none": {},
}

ASKED: dict[str, Callable[[Any], Any]] = {
    "ready": lambda group: group.ready(),
    "successful": lambda group: group.successful(),
    "failed": lambda group: group.failed(),
    "waiting": lambda group: group.waiting(),
    "completed_count": lambda group: group.completed_count(),
    "maybe_throw": lambda group: group.maybe_throw(),
    "maybe_throw without": lambda group: group.maybe_throw(propagate=False),
    "len": len,
    "bool": bool,
    "iter": lambda group: [each.id for each in group],
    "index": lambda group: group[1].id,
    "negative index": lambda group: group[-1].id,
    "slice": lambda group: [each.id for each in group[1:]],
    "results": lambda group: [each.id for each in group.results],
    "repr": repr,
}
WAITED: dict[str, Callable[[Any], Any]] = {
    "get": lambda group: group.get(timeout=5),
    "get without": lambda group: group.get(timeout=5, propagate=False),
    "join": lambda group: group.join(timeout=5),
    "join without": lambda group: group.join(timeout=5, propagate=False),
}


def outcome(of: Callable[[Any], Any], what: Any) -> str:
    """What *of* returns or raises for *what*, as text."""
    try:
        return repr(of(what))
    except Exception as error:  # noqa: BLE001 - that is what is compared
        return f"{type(error).__name__}{error.args}"


def both(pair: Pair, *ids: str) -> list[tuple[Any, Any]]:
    """Pairs of Celery's and our GroupResult, and of Celery's and our ResultSet."""
    theirs = [pair.theirs.AsyncResult(each) for each in ids]
    ours = [pair.ours.AsyncResult(each) for each in ids]
    return [
        (pair.theirs.GroupResult("g", list(theirs)), pair.ours.GroupResult("g", ours)),
        (pair.theirs.ResultSet(list(theirs)), pair.ours.ResultSet(ours)),
    ]


@pytest.mark.parametrize("stored", STORED)
def test_result_methods_return_the_same(pair: Pair, stored: str) -> None:
    store(pair, **STORED[stored])
    ways = {**ASKED, **(WAITED if len(STORED[stored]) == 3 else {})}
    for theirs, ours in both(pair, "a", "b", "c"):
        for name, ask in ways.items():
            assert outcome(ask, ours) == outcome(ask, theirs), name


def described(group: Any) -> Any:
    """What as_tuple() contains, as plain data."""
    return json.loads(json.dumps(group.as_tuple()))


def nested(app: Any) -> Any:
    """A group in a group, with two parents."""
    inner = app.GroupResult("inner", [app.AsyncResult("b"), app.AsyncResult("c")])
    before = app.AsyncResult("before")
    before.parent = app.AsyncResult("first")
    return app.GroupResult("outer", [app.AsyncResult("a"), inner], parent=before)


def test_nested_groups_have_the_same_tuple_form(pair: Pair) -> None:
    assert described(nested(pair.ours)) == described(nested(pair.theirs))
    again = result_from_tuple(described(nested(pair.theirs)), pair.ours)
    assert (again, again.parent.parent.id) == (nested(pair.ours), "first")
    assert str(again) == str(nested(pair.theirs)) == "outer"
    assert repr(again) == repr(nested(pair.theirs))
    assert again.parent.as_list() == nested(pair.theirs).parent.as_list()


def test_saved_groups_are_restored_by_the_other_library(pair: Pair) -> None:
    nested(pair.theirs).save()
    assert pair.ours.GroupResult.restore("outer") == nested(pair.ours)
    nested(pair.ours).save()
    theirs = pair.theirs.GroupResult.restore("outer")
    assert described(theirs) == described(nested(pair.ours))
    pair.ours.GroupResult.restore("outer").delete()
    assert pair.theirs.GroupResult.restore("outer") is pair.ours.GroupResult.restore("outer") is None


def test_members_are_added_and_removed_like_in_celery(pair: Pair) -> None:
    def change(group: Any, app: Any) -> list[str]:
        seen = []
        group.add(app.AsyncResult("a"))
        group.add(app.AsyncResult("d"))
        group.update([app.AsyncResult("b"), app.AsyncResult("e")])
        group.remove("a")
        group.remove(app.AsyncResult("b"))
        group.discard("nobody")
        seen.append(repr(group))
        seen.append(outcome(lambda group: group.remove("nobody"), group).partition("(")[0])
        group.clear()
        return [*seen, repr(group), repr((len(group), bool(group), group.get(timeout=1)))]

    for theirs, ours in both(pair, "a", "b", "c"):
        assert change(ours, pair.ours) == change(theirs, pair.theirs)


def test_nested_group_has_a_list_as_its_value(pair: Pair) -> None:
    store(pair, a=1, b=KeyError("no"), c=3)
    ours, theirs = nested(pair.ours), nested(pair.theirs)
    for ask in (
        lambda group: group.join(timeout=5, propagate=False),
        lambda group: group.completed_count(),
        lambda group: (group.ready(), group.failed(), group.successful(), group.waiting(), len(group)),
        lambda group: group.join(timeout=5),
    ):
        assert outcome(ask, ours) == outcome(ask, theirs)


def test_groups_are_equal_and_hashed_like_in_celery(pair: Pair) -> None:
    for app in (pair.ours, pair.theirs):
        one, same = nested(app), nested(app)
        assert one == same == "outer"
        assert hash(one) == hash(same) == hash("outer")
        assert one != app.GroupResult("outer", one.results)
        assert one != app.GroupResult("other", one.results, parent=one.parent)
        assert app.ResultSet(one.results) == app.ResultSet(same.results)


def test_forgetting_a_group_forgets_its_members(pair: Pair) -> None:
    store(pair, a=1, b=2)
    for theirs, ours in both(pair, "a", "b")[:1]:
        ours.forget()
        assert [theirs.ready(), ours.ready()] == [False, False]


def test_join_callbacks_get_the_same_arguments(pair: Pair) -> None:
    store(pair, a=1, b=KeyError("no"), c=3)
    for theirs, ours in both(pair, "a", "b", "c"):
        seen: list[list[Any]] = [[], []]
        for group, told in zip((theirs, ours), seen, strict=True):
            assert group.join(timeout=5, propagate=False, callback=lambda *a, told=told: told.append(a)) == []
        assert sorted(map(repr, seen[0])) == sorted(map(repr, seen[1]))
