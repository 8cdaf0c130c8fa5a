"""What was done lately, and what of it is known again when it is delivered again."""

from __future__ import annotations

from qworker.transports.amqp.settled import LINGER_SECONDS, SECONDS, SettledMessages
from qworker.transports.recent import Recent


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_old_or_too_much_is_forgotten() -> None:
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
    assert list(recent) == [[4], [5, 6, 7]], "four are kept at the least"
    recent.undo()
    assert list(recent) == [[4]]
    recent.undo()
    recent.undo()
    recent.add([])
    assert list(recent) == [[]]


def lost(settled: SettledMessages, *held: int) -> SettledMessages:
    settled.lose(held)
    return settled


def test_only_what_ended_shortly_before_a_loss_is_known_again() -> None:
    time = Time()
    settled = SettledMessages(time)
    settled.add([1])
    settled.alive()
    assert 1 not in settled, "no connection was lost"
    time.now += SECONDS + 1
    settled.alive()
    settled.add([2, 3])
    time.now += 3600  # the server was away for long
    lost(settled, 3)
    assert [identity in settled for identity in (1, 2, 3, 4)] == [False, True, False, False]
    time.now += LINGER_SECONDS / 2
    settled.add([5])
    settled.alive()
    assert 5 not in settled
    lost(settled)
    assert 2 in settled
    assert 5 in settled
    time.now += LINGER_SECONDS
    assert 2 not in settled


def test_what_is_not_over_is_run() -> None:
    settled = SettledMessages(Time())
    settled.alive()
    settled.add([1])
    settled.add([2])
    settled.undo()
    lost(settled)
    assert 1 in settled
    assert 2 not in settled
