"""Candidates: no available file is forgotten, and no unavailable one is tried in a busy loop."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from qworker.spooler.files.claiming import GONE, Reason, Refusal
from qworker.spooler.watching.candidates import LONGEST_DELAY, Candidates, Share
from qworker.testing import FakeClock

LOCKED = Refusal(Reason.LOCKED)


def taken(candidates: Candidates) -> list[str]:
    found = []
    while (path := candidates.take()) is not None:
        found.append(path)
        candidates.done(path)
    return found


def test_files_are_tried_first_in_first_out() -> None:
    candidates = Candidates(FakeClock())
    for path in ("b", "a", "b", "c"):
        candidates.offer(path)
    assert taken(candidates) == ["b", "a", "c"]


def test_ordered_files_are_sorted() -> None:
    candidates = Candidates(FakeClock(), ordered=True)
    for path in ("u10", "u9", "2/u1", "10/u1"):
        candidates.offer(path)
    assert candidates.precede("2/u2")
    assert not candidates.precede("1/u1")
    assert taken(candidates) == ["2/u1", "10/u1", "u9", "u10"]


def test_processes_start_with_their_own_share() -> None:
    paths = [f"u{number}" for number in range(100)]
    tried = []
    for number in range(3):
        candidates = Candidates(FakeClock(), share=Share(number, 3))
        for path in paths:
            candidates.offer(path)
        tried.append(taken(candidates))
    assert all(sorted(one) == sorted(paths) for one in tried)
    assert len({path for one in tried for path in one[:25]}) == 75


def test_held_file_is_not_returned_again() -> None:
    candidates = Candidates(FakeClock())
    candidates.offer("a")
    assert candidates.take() == "a"
    candidates.offer("a")
    candidates.seen([("a", 0)])
    assert candidates.take() is None
    candidates.done("a")
    candidates.offer("a")
    assert candidates.take() == "a"


def test_touch_only_affects_refused_files() -> None:
    candidates = Candidates(FakeClock())
    candidates.touch("a")
    assert candidates.take() is None
    candidates.refuse("a", Refusal(Reason.UNREADABLE))
    candidates.touch("a")
    assert candidates.take() == "a"


def test_locked_file_is_retried_with_growing_delays() -> None:
    clock = FakeClock()
    candidates = Candidates(clock)
    candidates.offer("a")
    tries = 0
    for _ in range(1000):  # ten seconds with constant changes of the file
        candidates.offer("a")
        if candidates.take() is not None:
            tries += 1
            candidates.refuse("a", LOCKED)
        clock.advance(0.01)
    assert 10 < tries < 20
    for _ in range(10):  # no changes
        clock.advance(LONGEST_DELAY)
        if candidates.take() is not None:
            candidates.refuse("a", LOCKED)
            tries += 1
    assert tries < 22


def test_files_not_seen_by_a_scan_are_forgotten() -> None:
    candidates = Candidates(FakeClock())
    for path in ("a", "b", "c"):
        candidates.refuse(path, Refusal(Reason.DECLINED))
    candidates.begin_scan()
    candidates.seen([("a", 0)])
    candidates.refuse("b", Refusal(Reason.DECLINED))
    candidates.end_scan()
    assert [candidates.refused(path) is None for path in ("a", "b", "c")] == [False, False, True]


class Spool(RuleBasedStateMachine):
    """Files are written, locked by others, delayed, and processed. After each scan, all available files
    are claimed; and no file is claimed twice at a time."""

    paths = st.sampled_from([f"u{number}" for number in range(5)])

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.candidates = Candidates(self.clock)
        self.files: dict[str, float] = {}  # path → due time
        self.locked: set[str] = set()
        self.held: set[str] = set()

    @rule(path=paths, delay=st.sampled_from([0.0, 1.0, 100.0]))
    def write(self, path: str, delay: float) -> None:
        if path not in self.files:
            self.files[path] = self.clock.now() + delay
            self.candidates.offer(path)

    @rule(path=paths)
    def lock(self, path: str) -> None:
        if path in self.files and path not in self.held:
            self.locked.add(path)

    @rule(path=paths, finished=st.booleans())
    def unlock(self, path: str, finished: bool) -> None:
        if path in self.locked:
            self.locked.remove(path)
            if finished:
                del self.files[path]  # without a notification
            else:
                self.candidates.offer(path)

    @rule(seconds=st.sampled_from([0.005, 0.5, 2.0, 200.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def take(self) -> None:
        self.claim()

    def claim(self) -> str | None:
        while (path := self.candidates.take()) is not None:
            assert path not in self.held
            if path not in self.files:
                self.candidates.refuse(path, GONE)
            elif path in self.locked:
                self.candidates.refuse(path, LOCKED)
            elif self.files[path] > self.clock.now():
                self.candidates.refuse(path, Refusal(Reason.NOT_DUE, self.files[path]))
            else:
                self.held.add(path)
                return path
        return None

    @rule(path=paths, delay=st.sampled_from([None, 0.0, 10.0]))
    def end(self, path: str, delay: float | None) -> None:
        if path in self.held:
            self.held.remove(path)
            if delay is None:
                del self.files[path]
                self.candidates.done(path)
            else:
                self.files[path] = self.clock.now() + delay
                self.candidates.refuse(path, Refusal(Reason.NOT_DUE, self.files[path]))

    @rule()
    def all_due_files_are_claimed(self) -> None:
        """Even without a scan, except for the delay of locked files."""
        self.clock.advance(LONGEST_DELAY)
        now = self.clock.now()
        due = {path for path in self.files if self.files[path] <= now} - self.locked - self.held
        while self.claim() is not None:
            pass
        assert due <= self.held

    @rule()
    def scan(self) -> None:
        self.candidates.begin_scan()
        for path, due in self.files.items():
            self.candidates.seen([(path, due)])
        self.candidates.end_scan()

    @invariant()
    def delayed_files_have_a_next_time(self) -> None:
        refusals = map(self.candidates.refused, self.files.keys() - self.held)
        resting = [found for found in refusals if found is not None and found.reason is Reason.NOT_DUE]
        assert not resting or self.candidates or self.candidates.next_time() < math.inf


TestSpool = Spool.TestCase
