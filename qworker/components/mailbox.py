"""Mailbox: requests from one thread to another; SettlementOrder: a request to the Listener.

Comes from:  any thread (post): Settler, EarlyAcks, TaskBucket, and ResultWriter once a result is stored.
Goes to:     the thread that owns it (take).
Thread:      post from any, take from the owner. A deque's append and popleft are atomic; no lock is held.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from qworker.components.request import Request
from qworker.transports.lease import Settlement

T = TypeVar("T")


class SettlementOrder(NamedTuple):
    """An order to the Listener to settle *request* (None: nothing is left to settle).

    - final: the worker is done with the request.
    - starts: the request runs once the broker has confirmed this settlement.
    - resend: send the request again, because its message was acked before a run that does not take place.
    - after_others: settle it after the results of other tasks that end with it are stored.
    """

    request: Request | None
    settlement: Settlement | None
    final: bool = True
    starts: bool = False
    resend: bool = False
    after_others: bool = False


class Mailbox(Generic[T]):
    """wake: called when an order arrives while the owner has no timer set, and at every *crowd* orders."""

    def __init__(self, wake: Callable[[], None], crowd: int = 64) -> None:
        self._orders: deque[T] = deque()
        self._wake = wake
        self._crowd = crowd
        self.armed = False
        """Set by the owner when it will check within milliseconds, so that an order need not wake it."""

    def post(self, order: T) -> None:
        """Add an order and wake the owner."""
        self._orders.append(order)
        self._wake()

    def post_many(self, orders: Iterable[T], at_once: bool = False) -> None:
        """Add *orders*; they wait for the owner's timer unless *at_once*."""
        before = len(self._orders)
        self._orders.extend(orders)
        after = len(self._orders)
        if after > before and (at_once or not self.armed or before // self._crowd != after // self._crowd):
            self._wake()

    def wake(self) -> None:
        """Wake the owner without an order."""
        self._wake()

    def take(self) -> list[T]:
        """Return all orders, oldest first; [] when there are none."""
        orders = []
        while self._orders:
            orders.append(self._orders.popleft())
        return orders

    def __len__(self) -> int:
        return len(self._orders)
