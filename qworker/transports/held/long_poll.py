"""LongPoll: a thread that only waits for the messages of a server. Looks: the same for servers without long
polling.

Comes from:  the consumer, which asks and collects.
Goes to:     ``PollSource.take``.
Thread:      the listener's, except _run().
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from qworker.transports.held.holdings import give_all_back
from qworker.transports.held.port import PollSource, Received, ServerQueue

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 1.0
"""How long the end waits for messages in transit to us."""
LOOK_SECONDS = 1.0
"""How long the first poll after a failure waits for messages."""
LATE_SECONDS = 2.0
"""How long an answer may be in transit."""
ANSWER_SECONDS = 3.0
"""How long collect() waits for its answer."""


class LongPoll:
    """Asks *source*, for *seconds* at a time. notify: called when an answer has arrived.

    Only requested messages are received, so that none is hidden here from workers that have room for it.
    """

    def __init__(self, source: PollSource, seconds: float, notify: Callable[[], None]) -> None:
        self.source = source
        self._arrived: defaultdict[str, deque[Received]] = defaultdict(deque)  # by the name of the queue
        self._seconds = seconds
        self._notify = notify
        self._under_way = self._abandoned = False
        self._failed = False
        """Whether the last answer was an error."""
        self._orders: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self._answers: SimpleQueue[list[Received] | Exception] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"poll {source.name}", daemon=True)
        self._thread.start()

    def ask(self, room: int) -> None:
        """Wait for up to *room* messages, unless a poll is active, or some have arrived that were not
        taken."""
        if not self._under_way and not any(self._arrived.values()):
            self._under_way = True
            seconds = min(LOOK_SECONDS, self._seconds) if self._failed else self._seconds
            self._orders.put((min(room, self.source.batch), seconds))

    def look(self) -> None:
        """Query the server for messages, unless that was done, or some have arrived that were not taken.
        Raises errors."""
        if self._under_way or any(self._arrived.values()):
            return
        self._under_way = True
        self._orders.put((1, self.source.look_seconds))
        with suppress(Empty):
            self._take(self._answers.get(timeout=ANSWER_SECONDS))

    def collect(self, room: int) -> None:
        """Process arrived messages. Raises errors instead.

        Afterwards it polls again, for up to *room* messages, and waits for the answer: an available server is
        only reported after it has answered.
        """
        if self._failed and room > 0:
            self.ask(room)
            if self._under_way:
                try:
                    self._take(self._answers.get(timeout=ANSWER_SECONDS))
                except Empty:
                    raise TimeoutError("there is no answer yet") from None
        self._take_all()

    def _take_all(self) -> None:
        while not self._answers.empty():
            self._take(self._answers.get())

    def _take(self, answer: list[Received] | Exception) -> None:
        self._under_way = False
        self._failed = isinstance(answer, Exception)
        if isinstance(answer, Exception):
            raise answer
        now = time.monotonic()
        ours = [message for message in answer if now < message.expires]
        if len(ours) < len(answer):
            logger.warning("%d messages arrived too late; other consumers have them", len(answer) - len(ours))
        for message in ours:
            self._arrived[message.queue.name].append(message)

    @property
    def arrived(self) -> Iterator[Received]:
        """Return arrived messages that were not taken yet."""
        for messages in self._arrived.values():
            yield from messages

    def get(self, queue: str) -> Received | None:
        """Return an arrived message of *queue*; None when there is none."""
        messages = self._arrived.get(queue)
        return messages.popleft() if messages else None

    def lose(self, gone: set[int]) -> None:
        """Forget the messages whose id() is in *gone*: others have them."""
        for name, messages in self._arrived.items():
            self._arrived[name] = deque(one for one in messages if id(one) not in gone)

    def close(self) -> None:
        """Stop polling; join() waits for an active poll."""
        self._orders.put((0, 0.0))
        self.source.interrupt()

    def abandon(self) -> None:
        """Stop polling, and leave messages that arrived or are in transit to others."""
        self._abandoned = True
        self._orders.put((0, 0.0))

    def join(self, seconds: float) -> None:
        """Process messages in transit, but do not wait longer than that. Later ones are delivered to others
        again, or, if this process has ended by then, hidden for as long as the server hides them."""
        self._thread.join(max(0.0, seconds))
        self._abandoned = self._thread.is_alive()
        try:
            self._take_all()
        except Exception:  # noqa: BLE001 - after any error: nothing has arrived
            pass

    def _run(self) -> None:
        while True:
            room, seconds = self._orders.get()
            if not room:
                break
            answer: list[Received] | Exception
            asked = time.monotonic()
            try:
                answer = self.source.take(room, seconds)
                hidden = _hidden_from(asked, seconds, time.monotonic())
                for message in answer:  # a source may know better
                    message.hidden_from(min(hidden, message.expires - message.lease_seconds))
                if self._abandoned:
                    give_all_back(answer)
                    return
            except Exception as error:  # noqa: BLE001 - collect() raises it on the thread of the listener
                answer = error
            self._answers.put(answer)
            self._notify()
        if self._abandoned:
            with suppress(Exception):  # if it fails, they come back when their reservation expires
                self._take_all()
                give_all_back(self.arrived)


def _hidden_from(asked: float, seconds: float, now: float) -> float:
    """Return the earliest time at which messages were hidden, given the time of the request (*asked*), the
    *seconds* that the server waits, and *now*, when they arrived. They were hidden at an unknown moment of
    the wait. If the answer is so late that the server cannot have waited that long, this process was frozen,
    and the answer was waiting for it."""
    return asked if now - asked > seconds + LATE_SECONDS else max(asked, now - 1.0)


class Polls:
    """All the polls of a consumer."""

    def __init__(self) -> None:
        self._polls: list[LongPoll] = []

    def add(self, sources: Iterable[PollSource], seconds: float, notify: Callable[[], None]) -> None:
        """Also poll *sources*."""
        self._polls += [LongPoll(source, seconds, notify) for source in sources]

    def __iter__(self) -> Iterator[LongPoll]:
        return iter(self._polls)

    def ask(self, room: int, queues: Sequence[str]) -> None:
        """Have each that serves one of *queues* wait for up to *room* messages."""
        for poll in self._polls:
            if any(map(poll.source.serves, queues)):
                poll.ask(room)

    def look(self, queue: str) -> None:
        """Query the server's messages of *queue* now, if none has arrived yet. Raises errors."""
        for poll in self._polls:
            if poll.source.serves(queue):
                poll.collect(0)
                poll.look()

    def unbind(self, queue: str, bound: Iterable[str]) -> list[str]:
        """Stop polling *queue*, and leave arrived messages to others; return which of the *bound* queues are
        not polled any more."""
        leaving = [poll for poll in self._polls if poll.source.serves(queue)]
        self._polls = [poll for poll in self._polls if poll not in leaving]
        for poll in leaving:
            poll.abandon()
        return [name for name in bound if any(poll.source.serves(name) for poll in leaving)]

    def collect(self, room: int) -> None:
        """Process arrived messages. Raises errors instead; see LongPoll."""
        for poll in self._polls:
            poll.collect(room)

    def get(self, queue: str) -> Received | None:
        """Return an arrived message of *queue*; None when there is none."""
        for poll in self._polls:
            if message := poll.get(queue):
                return message
        return None

    @property
    def arrived(self) -> Iterator[Received]:
        """Return arrived messages that were not taken yet."""
        for poll in self._polls:
            yield from poll.arrived

    def lose(self, gone: set[int]) -> None:
        """Forget the messages whose id() is in *gone*: others have them."""
        for poll in self._polls:
            poll.lose(gone)

    def close(self) -> None:
        """Stop polling, and process messages in transit, for up to DRAIN_SECONDS."""
        for poll in self._polls:
            poll.close()
        _join(self._polls)

    def drain(self, queues: set[ServerQueue]) -> None:
        """Called after close(), when messages of *queues* were given back: an active poll may have received
        some of them at once, and gives them back, too. Wait for that."""
        _join([
            poll for poll in self._polls
            if (poll.source in queues if isinstance(poll.source, ServerQueue) else queues)
        ])  # fmt: skip


class Looks:
    """The replacement for Polls, for sources that cannot wait: each is queried in the consumer's thread, for
    one message at a time, so nothing waits here."""

    arrived: Sequence[Received] = ()

    def __init__(self) -> None:
        self._sources: dict[str, PollSource] = {}

    def add(self, sources: Iterable[PollSource], seconds: float, notify: Callable[[], None]) -> None:
        """Also query *sources*."""
        self._sources.update((source.name, source) for source in sources)

    def __iter__(self) -> Iterator[LongPoll]:
        return iter(())

    def get(self, queue: str) -> Received | None:
        """Return a message of *queue*; None when there is none."""
        asked = time.monotonic()
        for message in self._sources[queue].take(1, 0.0) if queue in self._sources else ():
            message.hidden_from(asked)
            return message
        return None

    def unbind(self, queue: str, bound: Iterable[str]) -> list[str]:
        """Return []: sources are only queried for a given queue, so all stay bound."""
        return []

    def _nothing(self, *given: object) -> None:
        """Does nothing: no poll is ever active."""

    ask = look = collect = lose = close = drain = _nothing


def _join(polls: Sequence[LongPoll]) -> None:
    end = time.monotonic() + DRAIN_SECONDS
    for poll in polls:
        poll.join(end - time.monotonic())
