"""Group commit: waiting callers share one commit, and errors of one do not affect the others."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from qworker.errors import BrokerUnavailable, PublishError
from qworker.process.group_commit import GroupCommit
from tests.support.waiting import until


class Place:
    """Records the items of each commit; refuses those in *bad*."""

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
        """Push each of *items* from its own thread while the lock is held; return the errors by item."""
        errors: dict[str, Exception] = {}

        def push(item: str) -> None:
            try:
                self.group.push([item], timeout)
            except Exception as error:  # noqa: BLE001 - the test examines it
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


def test_single_caller_commits_at_once(place: Place) -> None:
    place.group.push(["a", "b"], 1.0)
    assert place.commits == [["a", "b"]]
    assert not place.lock.locked()


def test_error_of_a_single_caller_is_raised_and_the_lock_released(place: Place) -> None:
    place.bad = {"a"}
    with pytest.raises(PublishError, match="no good"):
        place.group.push(["a"], 1.0)
    place.group.push(["b"], 1.0)
    assert place.commits == [["b"]]


def test_waiting_callers_share_one_commit(place: Place) -> None:
    assert place.push_all("a", "b", "c") == {}
    assert [sorted(items) for items in place.commits] == [["a", "b", "c"]]


def test_error_of_one_caller_does_not_affect_the_others(place: Place) -> None:
    place.bad = {"b"}
    errors = place.push_all("a", "b", "c")
    assert set(errors) == {"b"}
    assert isinstance(errors["b"], PublishError)
    assert sorted(item for items in place.commits for item in items) == ["a", "c"]


def test_caller_that_times_out_has_written_nothing(place: Place) -> None:
    with (
        place.lock,
        pytest.raises(BrokerUnavailable, match="the place accepted no message within"),
    ):
        place.group.push(["a"], 0.01)
    place.group.push(["b"], 1.0)
    assert place.commits == [["b"]]


def test_forked_child_forgets_pending_items_of_its_parent(place: Place) -> None:
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
