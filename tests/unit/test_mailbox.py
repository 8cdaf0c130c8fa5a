"""Orders from any thread to one."""

from __future__ import annotations

import threading

from qworker.components.mailbox import Mailbox


class Owner:
    def __init__(self, crowd: int = 64) -> None:
        self.wakes = 0
        self.mailbox: Mailbox[int] = Mailbox(self.wake, crowd)

    def wake(self) -> None:
        self.wakes += 1


def test_orders_are_taken_oldest_first_and_once() -> None:
    owner = Owner()
    owner.mailbox.post(1)
    owner.mailbox.post_many([2, 3])
    assert len(owner.mailbox) == 3
    assert owner.mailbox.take() == [1, 2, 3]
    assert owner.mailbox.take() == []


def test_an_order_wakes_the_owner() -> None:
    owner = Owner()
    owner.mailbox.post_many([1])
    assert owner.wakes == 1


def test_no_orders_wake_nobody() -> None:
    owner = Owner()
    owner.mailbox.post_many([])
    assert owner.wakes == 0


def test_an_owner_with_a_timer_is_left_alone() -> None:
    owner = Owner()
    owner.mailbox.armed = True
    owner.mailbox.post_many([1, 2])
    assert owner.wakes == 0


def test_an_urgent_order_wakes_also_an_owner_with_a_timer() -> None:
    owner = Owner()
    owner.mailbox.armed = True
    owner.mailbox.post(1)
    assert owner.wakes == 1


def test_a_crowd_wakes_also_an_owner_with_a_timer() -> None:
    owner = Owner(crowd=10)
    owner.mailbox.armed = True
    for number in range(35):
        owner.mailbox.post_many([number])
    assert owner.wakes == 3


def test_no_order_is_lost_or_doubled_between_threads() -> None:
    owner = Owner()
    threads = [
        threading.Thread(target=lambda start=start: [owner.mailbox.post(start + n) for n in range(2000)])
        for start in (0, 2000, 4000)
    ]
    for thread in threads:
        thread.start()
    got: list[int] = []
    while any(thread.is_alive() for thread in threads):
        got += owner.mailbox.take()
    got += owner.mailbox.take()
    assert sorted(got) == list(range(6000))
    assert [n for n in got if n < 2000] == list(range(2000))  # each sender's in its order
