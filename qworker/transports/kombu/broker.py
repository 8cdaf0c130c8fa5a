"""Any broker that kombu has a transport for and we have no store for: MongoDB, Kafka, files, memory…

Comes from:  ``broker_url`` with such a scheme.
Goes to:     kombu; ``consumer.py`` has the leasing side.
Thread:      as Broker; one connection publishes, in turn, one belongs to the listener; neither crosses a
             fork.

It promises what the transport does (see ``transports/capabilities.py``), and polls. What kombu has no word
for is done without: a message that is due later is held by the worker, unacknowledged; dead letters go to a
queue; revocations do not spread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import kombu as untyped_kombu

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.conf.secrets import mask_urls
from qworker.errors import BrokerUnavailable, ConfigurationError, NotSupported
from qworker.interrupts import apart, let_pass, undisturbed
from qworker.transports.capabilities import capabilities_of
from qworker.transports.forked import forgetful
from qworker.transports.kombu.consumer import DEAD, KombuConsumer
from qworker.transports.kombu.messages import Outgoing, dead, of_envelope, outgoing, read, take_anything
from qworker.transports.lease import Dead, Envelope, QueueInfo, Undivided
from qworker.transports.own_headers import REDELIVERED

if TYPE_CHECKING:
    from qworker.conf import Settings

kombu: Any = untyped_kombu
_stores = forgetful()


class KombuBroker(KombuConsumer, Undivided):
    """The broker at *url*. options: transport_options for kombu. known: queues to be listed. eta_limit: how
    many messages that are not due yet a worker holds. poll: seconds between looks. timeout: seconds for
    connecting."""

    lacks = capabilities_of("memory://").lacks

    def __init__(
        self,
        url: str,
        *,
        options: dict[str, Any] | None = None,
        known: Sequence[str] = (),
        eta_limit: int = 1000,
        poll: float = 0.2,
        timeout: float = 4.0,
        use_ssl: Any = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url
        self._options = options or {}
        self._known = set(known)
        self._timeout = timeout
        self._use_ssl = use_ssl
        self._clock = clock
        self._turn = threading.Lock()
        self._connection: Any = None  # under the turn, as all below
        self._producer: Any = None
        self._declared: dict[str, Any] = {}
        super().__init__(eta_limit, poll)
        _stores.add(self)

    def _after_fork(self) -> None:
        """In a forked child: the parent's connections and leases are not ours."""
        self._turn = threading.Lock()
        self._connection = self._producer = None
        self._disown()

    def _connect(self) -> Any:
        """A connection of kombu's; ConfigurationError when the transport's library is missing."""
        scheme = self.url.partition(":")[0]
        try:
            connection = kombu.Connection(
                self.url,
                transport_options=self._options,
                connect_timeout=self._timeout,
                ssl=self._use_ssl or False,
            )
            with self._errors(connection):
                connection.ensure_connection(max_retries=1, timeout=self._timeout)
        except ImportError as error:
            raise ConfigurationError(
                f"broker_url: {scheme}:// needs a library that is not installed ({error}): "
                f'pip install "kombu[{scheme.partition("+")[0]}]"',
                setting="broker_url",
            ) from None
        return connection

    @contextmanager
    def _errors(self, connection: Any) -> Iterator[None]:
        """Makes BrokerUnavailable of the transport's own errors."""
        try:
            yield
        except (
            *connection.connection_errors,
            *connection.channel_errors,
            kombu.exceptions.OperationalError,
            OSError,
        ) as error:
            raise BrokerUnavailable(f"{mask_urls(self.url)}: {type(error).__name__}: {error}") from error

    # -- any thread --

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        now = self._clock.now()
        messages = [of_envelope(envelope, now) for envelope in envelopes]
        apart(lambda: self._send(messages, timeout))  # what kombu's transports lock is not ours to give back

    def _send(self, messages: Sequence[Outgoing], timeout: float = 10.0) -> None:
        if not messages:
            return
        deadline = time.monotonic() + timeout
        with self._publishing(timeout):
            for message in messages:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise BrokerUnavailable(
                        f"{mask_urls(self.url)} took not all messages within {timeout:g} s"
                    )
                if message.queue not in self._declared:
                    self._declared[message.queue] = self._declare(self._connection, message.queue)
                self._producer.publish(
                    message.body, exchange="", routing_key=message.queue, serializer=None, **message.options
                )
        self._ring()

    @contextmanager
    def _publishing(self, timeout: float) -> Iterator[None]:
        """The turn to publish, with a producer that is connected."""
        if not self._turn.acquire(timeout=timeout):
            raise BrokerUnavailable(f"{mask_urls(self.url)} took no message within {timeout:g} s")
        try:
            if self._connection is None:
                self._connection = self._connect()
                self._producer = kombu.Producer(self._connection.channel())
                self._declared = {}
            try:
                with self._errors(self._connection):
                    yield
            except BaseException:
                self._drop()
                raise
        finally:
            self._turn.release()

    def _drop(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            _close(connection)

    def _declare(self, connection: Any, queue: str) -> Any:
        """The queue, which there is from now on, on a channel of its own."""
        bound = kombu.Queue(queue, exchange=kombu.Exchange(""), routing_key=queue, durable=True)(
            connection.default_channel
        )
        bound.queue_declare()
        take_anything(connection.default_channel)
        return bound

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        raise NotSupported(
            f"{mask_urls(self.url)} has no way to tell all workers: tasks cannot be revoked with this broker"
        )

    # -- administration, which is as little ours to mark as publishing is --

    @contextmanager
    def _administrating(self) -> Iterator[Callable[[str], Any]]:
        """A function that gives a queue, on a connection for this."""
        connection = self._connect()
        try:
            with self._errors(connection):
                yield lambda name: self._declare(connection, name)
        finally:
            _close(connection)

    @undisturbed
    def queues(self) -> list[QueueInfo]:
        names = {*self._known, *self._declared} - {DEAD}
        ready = {info.queue: info.ready for info in self.depths(sorted(names))}
        buried = Counter(letter.queue for letter in self.dead(None, 2**31))
        found = [QueueInfo(name, ready.get(name, 0), dead=buried[name]) for name in {*names, *buried}]
        return sorted(info for info in found if info.ready or info.dead)

    def next_due(self, queues: Sequence[str]) -> float | None:
        """Always None: brokers do not tell (see ``lacks``)."""
        return None

    @undisturbed
    def depths(self, queues: Sequence[str]) -> list[QueueInfo]:
        with self._administrating() as find:
            return [
                QueueInfo(name, int(find(name).queue_declare(passive=True).message_count or 0))
                for name in queues
            ]

    @undisturbed
    def purge(self, queue: str) -> int:
        with self._administrating() as find:
            return int(find(queue).purge() or 0)

    @contextmanager
    def _shelf(self) -> Iterator[list[tuple[Any, Dead]]]:
        """All dead letters with their messages; what is not acknowledged goes back."""
        taken: list[tuple[Any, Dead]] = []
        with self._administrating() as queue:
            letters = queue(DEAD)
            try:
                while (message := letters.get(no_ack=False)) is not None:
                    taken.append((message, dead(read(message))))
                yield taken
            finally:
                for message, _ in taken:
                    if not message.acknowledged:
                        message.requeue()

    @undisturbed
    def dead(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        with self._shelf() as taken:
            letters = [letter for _, letter in taken if queue is None or letter.queue == queue]
        letters.sort(key=lambda letter: -letter.died_at)
        return letters[:limit]

    @undisturbed
    def dead_retry(self, tags: Sequence[int] | None = None) -> int:
        count = 0
        with self._shelf() as taken:
            for message, letter in taken:
                if tags is not None and letter.tag not in tags:
                    continue
                priority = read(message).priority
                self._send(
                    [
                        outgoing(
                            letter.queue, letter.headers, letter.properties, letter.body, priority,
                            {REDELIVERED: True},
                        )
                    ]
                )  # fmt: skip
                message.ack()
                count += 1
        return count

    @undisturbed
    def dead_discard(self, tags: Sequence[int] | None = None) -> int:
        count = 0
        with self._shelf() as taken:
            for message, letter in taken:
                if tags is None or letter.tag in tags:
                    message.ack()
                    count += 1
        return count

    def workers(self) -> list[dict[str, object]]:
        """Always []: brokers do not tell (see ``lacks``)."""
        return []

    def close(self) -> None:
        try:
            self.deregister()
        finally:
            with self._turn:
                self._drop()
            self._close_holder()


def _close(connection: Any) -> None:
    try:
        connection.release()
    except Exception as error:  # noqa: BLE001 - whatever the transport raises: it is given up
        let_pass(error)


def open_broker(url: str | None, conf: Settings) -> KombuBroker:
    """The broker at *url* with the settings *conf*; it is connected to at the first use."""
    options = dict(conf.broker_transport_options)
    return KombuBroker(
        url or "memory://",
        options=options,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
        poll=float(options.get("polling_interval") or 0.2),
        timeout=conf.broker_connection_timeout,
        use_ssl=conf.broker_use_ssl,
    )
