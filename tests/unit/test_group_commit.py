"""Callers that wait together share one commit, and none pays for another's mistake."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from qworker.errors import BrokerUnavailable, PublishError
from qworker.process.group_commit import GroupCommit
from tests.support.waiting import until


class Place:
    """Keeps what is stored, one list a commit; refuses what is in *bad*."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.commits: list[list[str]] = []
        self.bad: set[str] = set()
        self.group = GroupCommit(self, self.store, "the place")

    def store(self, items: Sequence[str], deadline: float) -> Exception | None:
        assert self.lock.locked()
        if refused := self.bad & set(items):
            return PublishError(f"no good: {sorted(refused)}")
        self.commits.append(list(items))
        return None

    def push_all(self, *items: str, timeout: float = 30.0) -> dict[str, Exception]:
        """Have each of *items* pushed by a thread of its own while the turn is taken; return who got which
        error."""
        errors: dict[str, Exception] = {}

        def push(item: str) -> None:
            try:
                self.group.push([item], timeout)
            except Exception as error:  # noqa: BLE001 - what the test looks at
                errors[item] = error

        with self.lock:
            threads = [threading.Thread(target=push, args=(item,)) for item in items]
            for thread in threads:
                thread.start()
            until(lambda: len(self.group._pending) == len(items))
        for thread in threads:
            thread.join(30)
        return errors


@pytest.fixture
def place() -> Place:
    return Place()


def test_who_is_alone_commits_at_once(place: Place) -> None:
    place.group.push(["a", "b"], 1.0)
    assert place.commits == [["a", "b"]]
    assert not place.lock.locked()


def test_the_error_of_who_is_alone_is_raised_and_the_turn_given_back(place: Place) -> None:
    place.bad = {"a"}
    with pytest.raises(PublishError, match="no good"):
        place.group.push(["a"], 1.0)
    place.group.push(["b"], 1.0)
    assert place.commits == [["b"]]


def test_those_who_wait_together_share_one_commit(place: Place) -> None:
    assert place.push_all("a", "b", "c") == {}
    assert [sorted(items) for items in place.commits] == [["a", "b", "c"]]


def test_what_one_did_wrong_does_not_keep_the_others_out(place: Place) -> None:
    place.bad = {"b"}
    errors = place.push_all("a", "b", "c")
    assert set(errors) == {"b"}
    assert isinstance(errors["b"], PublishError)
    assert sorted(item for items in place.commits for item in items) == ["a", "c"]


def test_who_never_gets_the_turn_has_written_nothing(place: Place) -> None:
    with (
        place.lock,
        pytest.raises(BrokerUnavailable, match="the place accepted no message within"),
    ):
        place.group.push(["a"], 0.01)
    place.group.push(["b"], 1.0)
    assert place.commits == [["b"]]


def test_a_child_forgets_what_its_parent_was_about_to_write(place: Place) -> None:
    with place.lock:
        waiting = threading.Thread(target=lambda: place.group.push(["parent's"], 30))
        waiting.start()
        until(lambda: place.group._pending)
        theirs = place.group._pending
        place.group.forget()
        assert not place.group._pending
        place.group._pending = theirs
    waiting.join(30)
    assert place.commits == [["parent's"]]
