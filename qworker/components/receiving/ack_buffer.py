"""AckBuffer: settlements that the Listener still has to send to the broker.

Comes from:  the mailbox, where orders for ended requests arrive; Listener, with requests to give back.
Goes to:     the store, many orders in one step, through Settlements; then the ledger, which removes the
             requests, and EarlyAcks, from which acked requests start.
Thread:      listener, except ``len`` and where noted.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from qworker.clock import Clock
from qworker.components.mailbox import Mailbox, SettlementOrder
from qworker.components.receiving.ledger import WorkerState
from qworker.components.receiving.settlements import Settlements
from qworker.components.request import Request
from qworker.components.waiting.early_acks import EarlyAcks
from qworker.components.waiting.inventory import DOUBT_SECONDS, NO_GENERATION, Doubts
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.process.crash_points import crash_point
from qworker.process.randomness import RANDOM
from qworker.publishing.retry import RECONNECT
from qworker.transports.lease import Ack, Broker, DeadLetter, Envelope, Release, RowsLocked, Settlement, Store

logger = logging.getLogger(__name__)

AGAIN = "ended and will run again"
UNSTORED = "ended and have no result stored"
LOST = "were acknowledged before they ran, have not run and are lost"
DOUBTFUL = "were perhaps acknowledged before they ran; if so, they have not run and are lost"


class FlushLimits(NamedTuple):
    """Orders are sent after *seconds*, or when there are this many *orders*."""

    seconds: float
    orders: int


class AckBuffer:
    """mailbox: of the Listener, to which other threads send orders."""

    def __init__(
        self,
        broker: Broker,
        mailbox: Mailbox[SettlementOrder],
        settlements: Settlements,
        state: WorkerState,
        early: EarlyAcks,
        limits: FlushLimits,
        clock: Clock,
    ) -> None:
        self._sender, self._consumer = broker.sender, broker.consumer
        self._mailbox = mailbox
        self._settlements = settlements
        self._state = state
        self._early = early
        self._limits = limits
        self._clock = clock
        self._orders: list[SettlementOrder] = []  # listener writes, as all below
        self._oldest = 0.0
        self._hurry = False
        """A request waits for one of the orders before it may start."""
        self.doubts = Doubts()
        self._given_up: list[SettlementOrder] = []
        """Orders that will not be sent any more."""
        self._doubtful: list[Request] = []
        """Requests that were in doubt at the end."""
        self.is_quiet = False  # set by quiet(), a flag

    def __len__(self) -> int:
        """Return the number of unsent orders. Any thread."""
        return len(self._orders) + len(self._mailbox) + len(self.doubts)

    def left(self) -> dict[str, list[str]]:
        """Return the consequences if the broker stays unavailable: task ids by description. Any thread,
        because the listener's may be stuck."""
        found: dict[str, list[str]] = {}
        orders = self._orders.copy()
        for order in (*self._given_up, *orders):
            request = order.request
            if request is None or not order.final or isinstance(order.settlement, Release):
                continue
            if order.settlement is not None or order.resend:
                fate = LOST if order.resend else UNSTORED if request.acked else AGAIN
                found.setdefault(fate, []).append(request.id)
        for request in (*self.doubts.undecided(), *self._doubtful, *self._perhaps_acked(orders)):
            if request.id not in (*found.get(LOST, ()), *found.get(DOUBTFUL, ())):
                found.setdefault(DOUBTFUL, []).append(request.id)
        return found

    def _perhaps_acked(self, orders: Sequence[SettlementOrder]) -> list[Request]:
        """Return the requests that wait for their early ack, if it may have reached the broker. Any
        thread."""
        starting = [order.request for order in orders if order.starts and order.request is not None]
        return [request for request in starting if _key(request) in self._settlements.uncertain]

    @property
    def waiting(self) -> bool:
        """Whether there is anything to flush."""
        return bool(self._orders)

    def collect(self, now: float) -> None:
        """Collect new orders at the monotonic time *now*."""
        self._mailbox.armed = False
        orders = self._mailbox.take()
        if orders:
            if not self._orders:
                self._oldest = now
            self._orders.extend(orders)
            self._hurry = self._hurry or any(order.starts for order in orders)

    def quiet(self) -> None:
        """Start no more requests: those to be acked before their start are given back. Any thread."""
        self.is_quiet = True

    def give_back(self, requests: Sequence[Request]) -> None:
        """Give *requests* back to the broker. Acked ones are sent again, because it no longer has them."""
        if requests:
            crash_point("giving back")
        for request in requests:
            if request.acked:
                self._orders.append(SettlementOrder(request, None, resend=True))
            else:
                self._state.leave(request)
                self._orders.append(SettlementOrder(None, Release(request.tag)))

    def is_due(self, now: float) -> bool:
        """Whether the orders must be sent now, by their age, their number, or a waiting request."""
        waited, enough = self._limits
        return bool(self._orders) and (
            self._hurry or len(self._orders) >= enough or now >= self._oldest + waited
        )

    def rest(self, now: float) -> float:
        """Return the seconds until orders are due, for the owner to sleep. Posting an order that can wait
        does not wake it meanwhile."""
        self._mailbox.armed = True
        return max(0.0, self._oldest + self._limits.seconds - now)

    # -- sending --

    def flush(self, generation: int) -> None:
        """Send all orders to the broker. generation: of the current lease.

        Raises like Settlements.carry_out() and keeps unsent orders then.
        """
        if self.is_quiet and self._hurry:
            self._orders = [self._not_started(order) for order in self._orders]
        orders = self._orders
        # The acks before a run that belong to a lost lease: this one cannot tell who has the messages.
        stale = {
            order.request.tag
            for order in orders
            if order.starts and order.request is not None and order.request.generation != generation
        }
        current = [
            order.settlement
            for order in orders
            if order.settlement is not None
            and not _is_over(order, generation)
            and not (order.starts and getattr(order.settlement, "tag", None) in stale)
        ]
        crash_point("settling")
        starting = [order for order in orders if order.starts]
        early = [order.request.tag for order in starting if order.request is not None]
        lost = self._settlements.carry_out(generation, current, early) if current else set()
        lost |= stale
        uncertain = self._settlements.uncertain.copy()
        # Orders of requests to be started stay here until confirmed; the others are done.
        self._orders = [order for order in orders if order.starts or order.resend]
        self._settled([order for order in orders if not order.starts], lost, generation)
        if self._hurry:
            self._settlements.confirm()  # if an ack were lost, the task would run twice
        crash_point("settled")
        self._orders, self._hurry = [order for order in self._orders if order.resend], False
        self._answered([order.request for order in starting if order.request is not None], lost, uncertain)
        if self._orders:
            self._consumer.extend()  # raises if the broker is unavailable, before anything is sent
            self._consumer.confirm()
            self._resend()

    def _not_started(self, order: SettlementOrder) -> SettlementOrder:
        """Return *order*, changed to give its request back if the request was waiting to start."""
        request = order.request
        if not order.starts or request is None or _key(request) in self._settlements.uncertain:
            return order
        self._early.answered([], [request])
        return SettlementOrder(request, Release(request.tag))

    def _settled(self, orders: Sequence[SettlementOrder], lost: set[int], generation: int) -> None:
        """Handle *orders* that the broker has processed; those for the tags *lost* came too late."""
        for order in orders:
            request, settlement = order.request, order.settlement
            if order.resend:
                continue
            if order.final and (request is not None or settlement is not None):
                self._state.totals[_counted(settlement)] += 1
            if request is None and isinstance(settlement, Ack | DeadLetter) and settlement.tag not in lost:
                self._state.settled_again(settlement.tag)
            if request is None or not order.final:
                continue
            if not request.acked and (request.tag in lost or _is_over(order, generation)):
                self._state.leave(request)
                self._came_too_late(request, order)
            else:
                self._state.leave(request, finished=not isinstance(settlement, Release | DeadLetter))
                if isinstance(settlement, DeadLetter):
                    self._state.kept(request)

    def _answered(self, requests: Sequence[Request], lost: set[int], uncertain: set[tuple[int, int]]) -> None:
        """Let *requests* run, whose acks the broker has confirmed, except the tags *lost*. uncertain: acks
        that were sent before without an answer, or answered too late, so that they may have been carried out;
        see Settlements.uncertain."""
        late = [request for request in requests if request.tag in lost]
        doubtful = [request for request in late if _key(request) in uncertain]
        for request in late:
            if _key(request) not in uncertain:
                self._state.leave(request)
                logger.warning(
                    "%r is not run: its lease was lost, and another worker has it",
                    request,
                    extra={"event": "task-lease-lost"},
                )
        if doubtful:  # perhaps this process was frozen
            self.doubts.add(doubtful, self._clock.monotonic() + DOUBT_SECONDS)
        if requests:
            self._early.answered([request for request in requests if request.tag not in lost], late)

    def _came_too_late(self, request: Request, order: SettlementOrder) -> None:
        """Record the end of *request*, which another worker has now, in case it is delivered here again."""
        if isinstance(order.settlement, Ack | DeadLetter):
            logger.warning(
                "%r ended after its lease was lost; another worker has it",
                request,
                extra={"event": "task-lease-lost"},
            )
            if self.is_quiet:
                self._given_up.append(order)
            self._state.finished_elsewhere(request, order.settlement)

    def _resend(self) -> None:
        """Send requests again that were acked and have not run. If that fails, they may have been sent: they
        must not run twice, so they are not sent again but fail."""
        orders, self._orders = self._orders, []
        requests = [order.request for order in orders if order.request is not None]
        try:
            self._sender.push(
                [
                    Envelope(one.queue, one.headers, one.properties, one.body, one.priority)
                    for one in (request.leased for request in requests)
                ]
            )
        except (BrokerUnavailable, ConfigurationError, PublishError) as error:
            if self.is_quiet:
                self._give_up(orders, error)
            self.doubts.add(requests, self._clock.monotonic())
            return
        self._state.totals["returned"] += len(requests)
        for request in requests:
            self._state.leave(request)
            if request.acks_late:  # it could not be read; see Settler
                self._state.sent_unread(request, self._clock.monotonic())

    # -- lost leases, and the end --

    def lost_lease(self, requests: Sequence[Request]) -> None:
        """Remove *requests*, and settlements without a request, which belonged to the lost lease. Results
        are stored all the same."""
        for request in requests:
            self._state.leave(request)
        self._orders = [
            order for order in self._orders if order.request or isinstance(order.settlement, Store)
        ]

    def end(self, generation: int, until: Callable[[], float], put_back: Callable[[], None]) -> None:
        """Send the last orders, and retry until the monotonic time *until*. Orders not sent by then are
        logged and reported by left(). put_back: gives back requests that must not start; called before each
        attempt, because an early ack may have been confirmed in the last one."""
        self.quiet()
        locked, lost = False, None
        for failures in count():
            self._doubtful += self.doubts.undecided()  # their failure can perhaps not be stored
            put_back()
            self.collect(self._clock.monotonic())
            if not self._orders:
                return
            try:
                if lost is not None:
                    self._flush_without_lease(lost)
                    continue
                if locked:
                    with suppress(RowsLocked):
                        self._consumer.extend()
                self.flush(generation)
            except LeaseLost as error:
                if lost is not None:  # this broker needs one for results, too
                    self._give_up_all(error)
                    return
                lost = error
            except (BrokerUnavailable, ConfigurationError) as error:
                locked = isinstance(error, RowsLocked)
                if failures == 0:
                    logger.warning(
                        "the broker does not answer, and %d settlements wait: %s",
                        len(self),
                        error,
                        extra={"event": "settlements-wait"},
                    )
                retry_at = self._clock.monotonic() + max(0.05, RECONNECT.delay(failures, RANDOM.random))
                while (now := self._clock.monotonic()) < min(retry_at, until()):
                    self._clock.sleep(min(0.1, retry_at - now))
                if now >= until():
                    self._give_up_all(error)
                    return

    def _flush_without_lease(self, error: LeaseLost) -> None:
        """Send what needs no lease, and give up the rest: other workers have the held messages now, but not
        the results, and not the messages that were acked before their run."""
        orders = self._orders
        results = [order for order in orders if isinstance(order.settlement, Store)]
        self._orders = [order for order in orders if order.resend]
        kept = {id(order) for order in (*results, *self._orders)}
        self._give_up([order for order in orders if id(order) not in kept], error)
        self._resend()
        self._orders = results
        stores = [order.settlement for order in results if isinstance(order.settlement, Store)]
        for stored in self._settlements.store(stores):
            self._settled(self._orders[:stored], set(), NO_GENERATION)
            self._orders = self._orders[stored:]

    def _give_up_all(self, error: Exception) -> None:
        orders, self._orders = self._orders, []
        self._give_up(orders, error)

    def _give_up(self, orders: Sequence[SettlementOrder], error: Exception) -> None:
        self._given_up.extend(orders)
        self._doubtful += self._perhaps_acked(orders)
        if orders:
            logger.error(
                "the last settlements did not reach the broker: %s",
                error,
                extra={"event": "settlements-lost"},
            )


def _counted(settlement: Settlement | None) -> str:
    """Return the key in the totals for *settlement*."""
    if isinstance(settlement, Release):
        return "lost" if settlement.counted else "requeued" if settlement.requeued else "returned"
    return "dead_lettered" if isinstance(settlement, DeadLetter) else "finished"


def _key(request: Request) -> tuple[int, int]:
    return request.generation, request.tag


def _is_over(order: SettlementOrder, generation: int) -> bool:
    """Whether the request belongs to a lost lease."""
    request = order.request
    return order.final and request is not None and not request.acked and request.generation != generation
