"""Leadership: who of several looks after the schedules, at times that are made by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.beat.leadership import Leadership
from qworker.beat.store import LEASE_SECONDS, LOOK_SECONDS, RENEW_SECONDS, Lease, ScheduleStore
from qworker.beat.store_memory import MemoryScheduleStore
from qworker.errors import BackendError, LeaseLost
from qworker.testing.clock import FakeClock
from tests.support.logging_events import logged


@pytest.fixture
def store() -> MemoryScheduleStore:
    return MemoryScheduleStore(FakeClock(), shared=True)


def leads(store: ScheduleStore, who: Leadership) -> bool:
    """Whether the store lets it do something."""
    try:
        store.note(who.lease or Lease("nobody"), {})
    except LeaseLost:
        return False
    return True


def waited(who: Leadership, start: float, most: float = 10.0) -> float:
    """Seconds from *start* until it leads, looking as often as it is told to."""
    now = start
    while who.step(now) is None:
        now += LOOK_SECONDS
        assert now - start < most
    return now - start


def test_the_first_leads_at_once(store: MemoryScheduleStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = Leadership(store, "one", "about one")
    assert one.step(0.0) == Lease("one", 1, 1, 0, "about one")
    assert logged(caplog) == ["beat-leads"]


def test_it_renews_when_it_is_time(store: MemoryScheduleStore) -> None:
    one = Leadership(store, "one")
    one.step(10.0)
    assert one.rest(10.1) == pytest.approx(RENEW_SECONDS - 0.1)
    one.step(10.0 + RENEW_SECONDS - 0.01)
    assert store.look().beats == 1
    one.step(10.0 + RENEW_SECONDS)
    assert store.look().beats == 2
    assert one.rest(10.0 + RENEW_SECONDS) == pytest.approx(RENEW_SECONDS)
    assert one.rest(99.0) == 0.0


def test_an_edit_is_seen_when_it_renews(store: MemoryScheduleStore) -> None:
    one = Leadership(store, "one")
    one.step(0.0)
    store.edit("a", b"{}", 0)
    lease = one.step(RENEW_SECONDS)
    assert lease is not None
    assert lease.version == 1


def test_who_renews_keeps_the_lease(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    for number in range(200):
        now = number * LOOK_SECONDS
        assert one.step(now) is not None
        assert other.step(now) is None


def test_another_takes_over_when_it_has_stood_still_and_not_before(
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
    assert one.step(50.0) is None, "a frozen one notices"
    assert logged(caplog) == ["beat-leads", "beat-follows", "beat-leads", "beat-follows"]
    assert one.step(50.25) is None
    assert not leads(store, one)


def test_it_takes_over_soon(store: MemoryScheduleStore) -> None:
    Leadership(store, "one").step(0.0)
    assert waited(Leadership(store, "other"), 0.0) <= LEASE_SECONDS + 2 * LOOK_SECONDS


def test_who_resigns_is_followed_at_once(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    assert other.step(0.0) is None
    one.resign()
    one.resign()
    assert one.lease is None
    assert other.step(0.1) is not None


def test_resigning_takes_nothing_from_who_came_after(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    waited(other, 0.0)
    one.resign()
    assert store.look().holder == "other"


def test_who_has_lost_it_waits_as_anybody(store: MemoryScheduleStore) -> None:
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    waited(other, 0.0)
    assert one.step(5.0) is None
    assert LEASE_SECONDS <= waited(one, 5.25) <= LEASE_SECONDS + 2 * LOOK_SECONDS


class Slow(MemoryScheduleStore):
    """While it answers, *meanwhile* happens."""

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


def test_a_look_that_takes_long_does_not_make_a_leader_seem_still() -> None:
    """It was asked at 0 s, and answered with what was so at 5 s."""
    store = Slow()
    one, other = Leadership(store, "one"), Leadership(store, "other")
    one.step(0.0)
    store.renewals = [one]
    assert other.step(0.0) is None
    assert other.step(5.0) is None, "which is nothing before that"
    assert other.step(5.0 + LEASE_SECONDS) is not None


def test_a_store_that_is_away_takes_no_lease() -> None:
    store = Slow()
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
def test_two_never_lead_at_once(turns: list[tuple[int, str, float]]) -> None:
    """However their turns fall, and however far their clocks are apart."""
    store = MemoryScheduleStore(FakeClock(), shared=True)
    some = [Leadership(store, f"w{number}") for number in range(4)]
    now, generation, renewed = 0.0, 0, {}
    for number, what, seconds in turns:
        now += seconds
        who = some[number]
        before = store.look()
        if what == "edit":
            row = store.row("a")
            store.edit("a", b"{}", row.version if row else 0)
        elif what == "resign":
            who.resign()
        else:
            who.step(now + number * 1000)
        after = store.look()
        if after[:3] != before[:3]:
            renewed[after.holder] = now
        if after.generation != before.generation:
            stood = now - renewed.get(before.holder, -1e9)
            assert not before.holder or stood >= LEASE_SECONDS, "it was taken from one that lived"
        assert after.generation >= generation
        generation = after.generation
        assert sum(leads(store, each) for each in some) <= 1
