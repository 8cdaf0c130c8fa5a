"""Amazon SQS: messages as kombu's transport has them, sent, received, kept and deleted by us.

Comes from:  ``broker_url = "sqs://…"``.
Goes to:     ``transports/kombu/broker.py``, which it is but for what is said here; ``queue.py``.
Thread:      as KombuBroker; each queue that is consumed has a thread that waits for its messages.

SQS hides a message that it gave to somebody for some seconds. That is our lease: it is renewed for as long as
this worker lives, so no task is too long for it. What is due later waits in SQS, which delays a message by up
to 15 minutes, and is sent on until it is due.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify
from typing import TYPE_CHECKING, Any

from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, LeaseLost, PublishError
from qworker.interrupts import undisturbed
from qworker.naming import install_command
from qworker.transports.capabilities import capabilities_of
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.consumer import DEAD, End, Held
from qworker.transports.kombu.messages import Outgoing, packed
from qworker.transports.lease import Ack, Bury, Leased, QueueInfo, Release
from qworker.transports.own_headers import DUE
from qworker.transports.sqs.queue import FIFO, UNFIT, LongPoll, Received, SqsQueue, portions

try:
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError
    from kombu.transport import SQS as untyped_sqs
except ImportError as import_error:
    raise ConfigurationError(
        f"{import_error.name or 'boto3'} is not installed, which sqs:// needs: {install_command('sqs')}",
        setting="broker_url",
    ) from import_error

if TYPE_CHECKING:
    from qworker.conf import Settings

kombu_sqs: Any = untyped_sqs
logger = logging.getLogger(__name__)

LEASE_SECONDS = 30
"""For how long messages are hidden, at least when they are received."""
LONGEST_DELAY = 900
AHEAD_SECONDS = 30.0
"""What is due sooner is kept here."""
WAIT_SECONDS = 10
FAREWELL_SECONDS = 1.0
"""How long the end waits for messages that are on their way to us."""
SHELF_SECONDS = 120
"""For how long a dead letter is hidden that somebody looks at."""
LOOK_SECONDS = 5.0
REFUSED = frozenset({
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidAccessKeyId",
    "AccessDenied", "AccessDeniedException", "AuthFailure",
})  # fmt: skip


class SqsBroker(KombuBroker):
    """options: those of kombu's transport. visibility: seconds after which a dead worker's messages come
    back."""

    lacks = capabilities_of("sqs://").lacks

    def __init__(self, url: str, *, options: dict[str, Any], visibility: int, **more: Any) -> None:
        self._visibility = visibility
        self._wait_seconds = int(options.get("wait_time_seconds", WAIT_SECONDS))
        self._polls: list[LongPoll] = []  # listener only, as the next
        self._renew_at = 0.0
        self._answered = False
        timeout = more.get("timeout", 4.0)
        client = {
            "connect_timeout": timeout,
            "read_timeout": self._wait_seconds + 10,
            "max_pool_connections": 64,
            "retries": {"mode": "standard", "total_max_attempts": 2},
            **(options.get("client-config") or {}),
        }
        super().__init__(url, options={**options, "client-config": client}, poll=LOOK_SECONDS, **more)

    # -- connecting --

    def _connect(self) -> Any:
        try:
            connection = super()._connect()
        except BrokerUnavailable as error:
            if not self._answered and _refuses(error.__cause__):
                raise ConfigurationError(str(error), setting="broker_url") from error
            raise
        self._answered = True
        return connection

    @contextmanager
    def _errors(self, connection: Any) -> Iterator[None]:
        try:
            with super()._errors(connection):
                yield
        except ClientError as error:
            raise BrokerUnavailable(f"{mask_urls(self.url)}: {error}") from error
        except (kombu_sqs.UndefinedQueueException, kombu_sqs.InvalidQueueException) as error:
            raise ConfigurationError(
                f"broker_transport_options: predefined_queues: {error} (dead letters go to "
                f"{DEAD.replace('.', '-')})",
                setting="broker_transport_options",
            ) from error

    def _declare(self, connection: Any, queue: str) -> Any:
        hidden = SHELF_SECONDS if queue == DEAD else min(LEASE_SECONDS, self._visibility)
        return SqsQueue(connection.default_channel, queue, hidden)

    # -- sending --

    def _send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        if not messages:
            return
        deadline = time.monotonic() + timeout
        with self._publishing(timeout):
            for name in dict.fromkeys(message.queue for message in messages):
                if name not in self._declared:
                    self._declared[name] = self._declare(self._connection, name)
                queue: SqsQueue = self._declared[name]
                entries = (
                    queue.entry(message, self._delay(message))
                    for message in messages
                    if message.queue == name
                )
                for portion in portions(entries):
                    if time.monotonic() >= deadline:
                        raise BrokerUnavailable(
                            f"{mask_urls(self.url)} took not all messages within {timeout:g} s"
                        )
                    try:
                        queue.send(portion)
                    except (ClientError, ParamValidationError) as error:
                        if isinstance(error, ParamValidationError) or _code(error) in UNFIT:
                            raise PublishError(f"{mask_urls(self.url)}: {error}") from error
                        raise
        self._ring()

    def _delay(self, message: Outgoing) -> int:
        """For how many seconds SQS is to keep *message* to itself."""
        due = message.options["headers"].get(DUE)
        return 0 if due is None else max(0, min(LONGEST_DELAY, int(due - self._clock.now())))

    def _bury(self, held: Held, bury: Bury) -> None:
        try:
            super()._bury(held, bury)
        except PublishError:  # with its reason it is larger than what SQS took before
            self._send([self._buried(held, bury, packed)])

    # -- leasing --

    @contextmanager
    def _leasing(self) -> Iterator[Any]:
        """The connection. What is held stays ours when SQS does not answer for a while."""
        connection = self._consuming
        if connection is None:
            raise LeaseLost("there is no connection to the broker: what was held goes to others")
        try:
            with self._errors(connection):
                yield connection
        except BrokerUnavailable as error:
            if "NonExistent" in _code(error.__cause__) or "DoesNotExist" in _code(error.__cause__):
                self._let_go()
                raise LeaseLost(f"{error}; a queue was deleted") from error
            raise

    def register(self, name: str, queues: Sequence[str], concurrency: int) -> int:
        epoch = super().register(name, queues, concurrency)
        with self._errors(self._consuming):
            self._declare(self._consuming, DEAD)  # said now, and not at the first dead letter
        self._polls = [LongPoll(queue, self._wait_seconds, self._ring) for queue in self._bound.values()]
        self._bound = {poll.queue.name: poll for poll in self._polls}
        return epoch

    def _lease(self, queues: Sequence[str], limit: int, near: int, horizon: float) -> list[Leased]:
        with self._leasing():
            self._renew()
            for poll in self._polls:
                poll.collect()
        found = super()._lease(queues, limit, near, horizon)
        try:
            with self._leasing():
                self._delete()  # what was sent on
        except BrokerUnavailable:
            pass  # the next turn does it: what was found must not be forgotten here
        room = limit - len(found)
        if room > 0 and time.monotonic() >= self._full_until:
            for poll in self._polls:
                poll.ask(room)
        return found

    def _stays(self, held: Held, due: float, besides: int = 0) -> bool:
        near = held.leased.queue.endswith(FIFO) or due - self._clock.now() <= AHEAD_SECONDS
        return near and super()._stays(held, due, besides)

    def _prepare(self, settlement: Ack | Bury | Release, kept: int) -> End:
        try:
            return super()._prepare(settlement, kept)
        except PublishError:
            if isinstance(settlement, Release) and settlement.due is not None and not settlement.counted:
                held = self._held[settlement.tag]  # it is too large to be sent on, and so it stays
                return End(self._released(held, settlement), settlement.due)
            raise

    def _finish(self, ends: Mapping[int, End]) -> None:
        try:
            super()._finish(ends)
            self._delete()
        except BaseException:  # what was not deleted is still ours, and its settlement will come again
            undone = {id(one) for poll in self._polls for one in poll.queue.finished}
            for tag, (held, _, _) in ends.items():
                if id(held.message) in undone:
                    held.message.queue.finished.remove(held.message)
                    self._held[tag] = held
                    self._here.add(tag)
            raise

    def _delete(self) -> None:
        for poll in self._polls:
            for one in poll.queue.delete_finished():
                logger.warning("message %s of %s ended after its lease; it may "
                               "run again", one.delivery_tag, poll.queue.name)  # fmt: skip

    def extend(self) -> None:
        with self._leasing():
            self._renew()

    def _renew(self) -> None:
        """Hide for longer what has been here for long."""
        now = time.monotonic()
        if now < self._renew_at:
            return
        self._renew_at = now + 0.5
        stale: dict[SqsQueue, list[Received]] = {}
        for one in self._messages():
            if now >= one.renew_at:
                stale.setdefault(one.queue, []).append(one)
        gone = {id(one) for queue, ones in stale.items() for one in queue.hide(ones, self._visibility)}
        if gone:
            self._lose(gone)

    def _messages(self) -> Iterator[Received]:
        for held in self._held.values():
            yield held.message
        for _, _, held in self._waiting:
            yield held.message
        for poll in self._polls:
            yield from poll.arrived

    def _lose(self, gone: set[int]) -> None:
        """Forget what others have by now, *gone* by its identity."""
        logger.warning("%d messages were not renewed in time; others have them", len(gone))
        lost = [held for held in self._held.values() if id(held.message) in gone]
        lost += [entry[2] for entry in self._waiting if id(entry[2].message) in gone]
        for held in lost:
            self._held.pop(held.leased.tag, None)
            self._here.discard(held.leased.tag)
        self._waiting = [entry for entry in self._waiting if id(entry[2].message) not in gone]
        heapify(self._waiting)
        for poll in self._polls:
            for one in [one for one in poll.arrived if id(one) in gone]:
                poll.arrived.remove(one)

    # -- the end --

    def _let_go(self) -> None:
        polls, connection = self._polls, self._consuming
        if connection is None:
            super()._let_go()
            return
        for poll in polls:
            poll.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for poll in polls:
            poll.join(end - time.monotonic())
        held: dict[SqsQueue, list[Received]] = {}
        for one in self._messages():
            held.setdefault(one.queue, []).append(one)
        try:
            with self._errors(connection):
                self._delete()
                for queue, ones in held.items():
                    queue.hide(ones, 0)
        except BrokerUnavailable:
            pass  # they come back when they are hidden no longer
        self._polls = []
        self._forget_all()
        end = time.monotonic() + FAREWELL_SECONDS
        for poll in polls:
            if poll.queue in held:  # a poll under way has got some of them at once, and gives them back, too
                poll.join(end - time.monotonic())
        super()._let_go()

    def _disown(self) -> None:
        self._polls = []
        super()._disown()

    # -- administration --

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        names = sorted({*self._known, *self._declared} - {DEAD})
        standing = {info.queue: info for info in self.depths(names)}
        buried = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = []
        for name in sorted({*names, *buried}):
            _, ready, delayed, leased, _, _ = standing.get(name) or QueueInfo(name, 0, 0, 0, 0, None)
            found.append(QueueInfo(name, ready, delayed, leased, buried[name], None))
        return [info for info in found if info.ready or info.delayed or info.leased or info.dead]

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._administrating() as find:
            counts = [(name, find(name).queue_declare(passive=True)) for name in queues]
        return [
            QueueInfo(name, count.message_count, count.delayed, count.leased, 0, None)
            for name, count in counts
        ]


def _code(error: BaseException | None) -> str:
    """What SQS calls *error*, without the name of the service before it; "" for any other."""
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def _refuses(error: BaseException | None) -> bool:
    """Whether it is the keys that are wrong, or lacking."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (401, 403) or _code(error) in REFUSED
    return isinstance(error, NoCredentialsError) or (error is not None and _refuses(error.__cause__))


def open_broker(url: str | None, conf: Settings) -> SqsBroker:
    """The broker at *url* with the settings *conf*; it is connected to at the first use."""
    options = dict(conf.broker_transport_options)
    scheme, _, rest = (url or "").partition("://")
    if scheme.endswith("+https"):
        options["is_secure"] = True
    return SqsBroker(
        f"sqs://{rest}",
        options=options,
        # The lease is renewed thrice in worker_lease_seconds, and must not end before that.
        visibility=max(
            int(options.get("visibility_timeout") or LEASE_SECONDS), math.ceil(conf.worker_lease_seconds)
        ),
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
        timeout=conf.broker_connection_timeout,
        use_ssl=conf.broker_use_ssl,
    )
