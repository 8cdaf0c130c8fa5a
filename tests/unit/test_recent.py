"""Recently settled messages, and which of them are recognized when they are redelivered."""

from __future__ import annotations

from qworker.transports.amqp.consumer import LINGER_SECONDS, SECONDS, SettledMessages
from qworker.transports.recent import Recent


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_old_and_excess_entries_are_forgotten() -> None:
    time = Time()
    recent: Recent[int] = Recent(10.0, 4, time)
    recent.add([1, 2])
    time.now += 6
    recent.add([3])
    assert list(recent) == [[1, 2], [3]]
    time.now += 6
    recent.add([4])
    assert list(recent) == [[3], [4]]
    recent.add([5, 6, 7])
    assert list(recent) == [[4], [5, 6, 7]], "at least four are kept"
    recent.undo()
    assert list(recent) == [[4]]
    recent.undo()
    recent.undo()
    recent.add([])
    assert list(recent) == [[]]


def settled_after_loss(settled: SettledMessages, *held: int) -> SettledMessages:
    settled.lose(held)
    return settled


def test_only_messages_settled_shortly_before_a_lost_connection_are_known() -> None:
    time = Time()
    settled = SettledMessages(time)
    settled.add([1])
    settled.alive()
    assert 1 not in settled, "no connection was lost"
    time.now += SECONDS + 1
    settled.alive()
    settled.add([2, 3])
    time.now += 3600  # a long outage of the server
    settled_after_loss(settled, 3)
    assert [identity in settled for identity in (1, 2, 3, 4)] == [False, True, False, False]
    time.now += LINGER_SECONDS / 2
    settled.add([5])
    settled.alive()
    assert 5 not in settled
    settled_after_loss(settled)
    assert 2 in settled
    assert 5 in settled
    time.now += LINGER_SECONDS
    assert 2 not in settled


def test_undone_settlements_are_not_remembered() -> None:
    settled = SettledMessages(Time())
    settled.alive()
    settled.add([1])
    settled.add([2])
    settled.undo()
    settled_after_loss(settled)
    assert 1 in settled
    assert 2 not in settled
