"""Leadership: which of several beat processes leads, with instants given by the tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat.leadership import Leadership
from qworker.beat.store import LEASE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, Lease, ScheduleStore
from qworker.beat.stores import MemoryScheduleStore
from qworker.errors import BackendError, LeaseLost
from qworker.testing.clock import FakeClock
from tests.support.logging_events import logged


@pytest.fixture
def store() -> MemoryScheduleStore:
    return MemoryScheduleStore(FakeClock(), shared=True)


def may_write(store: ScheduleStore, candidate: Leadership) -> bool:
    """Return whether the store accepts a write under its lease."""
    try:
        store.note(candidate.lease or Lease("nobody"), {})
    except LeaseLost:
        return False
    return True


def seconds_until_leading(candidate: Leadership, start: float, most: float = 10.0) -> float:
    """Return the seconds from *start* until it leads, if it checks every LOOK_SECONDS."""
    now = start
    while candidate.step(now) is None:
        now += LOOK_SECONDS
        assert now - start < most
    return now - start


def test_first_candidate_leads_at_once(store: MemoryScheduleStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = Leadership(store, "one", "about one")
    assert one.step(0.0) == Lease("one", 1, 1, 0, "about one")
    assert logged(caplog) == ["beat-leads"]


def test_leader_renews_at_the_renewal_interval(store: MemoryScheduleStore) -> None:
    one = Leadership(store, "one")
    one.step(10.0)
    assert one.rest(10.1) == pytest.approx(RENEW_SECONDS - 0.1)
    one.step(10.0 + RENEW_SECONDS - 0.01)
    assert store.look().beats == 1
    one.step(10.0 + RENEW_SECONDS)
    assert store.look().beats == 2
    assert one.rest(10.0 + RENEW_SECONDS) == pytest.approx(RENEW_SECONDS)
    assert one.rest(99.0) == 0.0


def test_leader_sees_edits_when_it_renews(store: MemoryScheduleStore) -> None:
    one = Leadership(store, "one")
    one.step(0.0)
    store.edit("a", b"{}", 0)
    lease = one.step(RENEW_SECONDS)
    assert lease is not None
    assert lease.version == 1


def test_renewing_leader_keeps_the_lease(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    for number in range(200):
        now = number * LOOK_SECONDS
        assert one.step(now) is not None
        assert other.step(now) is None


def test_follower_takes_over_only_after_the_lease_expired(
    store: MemoryScheduleStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    other.step(100.0)
    other.step(100.25)
    assert other.step(100.25 + LEASE_SECONDS - 0.01) is None
    lease = other.step(100.25 + LEASE_SECONDS)
    assert lease is not None
    assert lease.generation == 2
    assert one.step(50.0) is None, "the frozen leader notices"
    assert logged(caplog) == ["beat-leads", "beat-follows", "beat-leads", "beat-follows"]
    assert one.step(50.25) is None
    assert not may_write(store, one)


def test_follower_takes_over_soon_after_expiry(store: MemoryScheduleStore) -> None:
    Leadership(store, "one").step(0.0)
    assert seconds_until_leading(Leadership(store, "other"), 0.0) <= LEASE_SECONDS + 2 * LOOK_SECONDS


def test_follower_leads_at_once_after_a_resignation(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    assert other.step(0.0) is None
    one.resign()
    one.resign()
    assert one.lease is None
    assert other.step(0.1) is not None


def test_late_resignation_does_not_affect_the_next_leader(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    seconds_until_leading(other, 0.0)
    one.resign()
    assert store.look().holder == "other"


def test_former_leader_waits_for_the_lease_to_expire(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    seconds_until_leading(other, 0.0)
    assert one.step(5.0) is None
    assert LEASE_SECONDS <= seconds_until_leading(one, 5.25) <= LEASE_SECONDS + 2 * LOOK_SECONDS


class FaultyScheduleStore(MemoryScheduleStore):
    """away: look() raises. renewals: renew while look() is answering."""

    def __init__(self) -> None:
        super().__init__(FakeClock(), shared=True)
        self.away = False
        self.renewals: list[Leadership] = []

    def look(self) -> Lease:
        if self.away:
            raise BackendError("away")
        for each in self.renewals:
            each.step(1000.0)
        self.renewals = []
        return super().look()


def test_slow_read_does_not_make_a_leader_look_dead() -> None:
    """The read began at 0 s, and returned the state of 5 s."""
    store = FaultyScheduleStore()
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    store.renewals = [one]
    assert other.step(0.0) is None
    assert other.step(5.0) is None, "the leader counts as unchanged from 5 s on"
    assert other.step(5.0 + LEASE_SECONDS) is not None


def test_unavailable_store_grants_no_lease() -> None:
    store = FaultyScheduleStore()
    one = Leadership(store, "one")
    store.away = True
    with pytest.raises(BackendError):
        one.step(0.0)
    assert one.lease is None
    store.away = False
    assert one.step(1.0) is not None


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([*["step"] * 3, "resign", "edit"]), st.floats(0, 2)),
        max_size=80,
    )
)
def test_at_most_one_candidate_leads(steps: list[tuple[int, str, float]]) -> None:
    """For any order of steps and any difference of clocks."""
    store = MemoryScheduleStore(FakeClock(), shared=True)
    some = [Leadership(store, f"w{number}") for number in range(4)]
    now, generation, renewed = 0.0, 0, {}
    for number, what, seconds in steps:
        now += seconds
        candidate = some[number]
        before = store.look()
        if what == "edit":
            row = store.row("a")
            store.edit("a", b"{}", row.version if row else 0)
        elif what == "resign":
            candidate.resign()
        else:
            candidate.step(now + number * 1000)
        after = store.look()
        if after[:3] != before[:3]:
            renewed[after.holder] = now
        if after.generation != before.generation:
            silent = now - renewed.get(before.holder, -1e9)
            assert not before.holder or silent >= LEASE_SECONDS, "the lease was taken from a live leader"
        assert after.generation >= generation
        generation = after.generation
        assert sum(may_write(store, each) for each in some) <= 1
