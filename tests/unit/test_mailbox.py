"""The mailbox: orders from any thread to its owner."""

from __future__ import annotations

import threading

from qworker.components.mailbox import Mailbox


class Owner:
    def __init__(self, crowd: int = 64) -> None:
        self.wakes = 0
        self.mailbox: Mailbox[int] = Mailbox(self.wake, crowd)

    def wake(self) -> None:
        self.wakes += 1


def test_orders_are_taken_once_oldest_first() -> None:
    owner = Owner()
    owner.mailbox.post(1)
    owner.mailbox.post_many([2, 3])
    assert len(owner.mailbox) == 3
    assert owner.mailbox.take() == [1, 2, 3]
    assert owner.mailbox.take() == []


def test_order_wakes_the_owner() -> None:
    owner = Owner()
    owner.mailbox.post_many([1])
    assert owner.wakes == 1


def test_empty_post_does_not_wake_the_owner() -> None:
    owner = Owner()
    owner.mailbox.post_many([])
    assert owner.wakes == 0


def test_order_does_not_wake_an_armed_owner() -> None:
    owner = Owner()
    owner.mailbox.armed = True
    owner.mailbox.post_many([1, 2])
    assert owner.wakes == 0


def test_urgent_order_wakes_an_armed_owner() -> None:
    owner = Owner()
    owner.mailbox.armed = True
    owner.mailbox.post(1)
    assert owner.wakes == 1


def test_many_orders_wake_an_armed_owner() -> None:
    owner = Owner(crowd=10)
    owner.mailbox.armed = True
    for number in range(35):
        owner.mailbox.post_many([number])
    assert owner.wakes == 3


def test_no_order_is_lost_or_duplicated_between_threads() -> None:
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
    assert [n for n in got if n < 2000] == list(range(2000))  # each sender's orders keep their order
