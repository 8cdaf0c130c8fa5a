"""NATS JetStream as a broker: connecting, its errors, streams and consumers, revocations and letters.

Comes from:  ``broker_url = "nats://…"``, by the entry point.
Goes to:     ``transports/held/``, with the modules of this package.
Thread:      any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.naming import task_ids
from qworker.transports.capabilities import Capabilities, Capability
from qworker.transports.connect_errors import NATS, explained, while_connecting
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.held.messages import parsed
from qworker.transports.held.port import (
    FAILED,
    Count,
    NewMessage,
    PollSource,
    QueueGone,
    Received,
    ReceivedRevocations,
    Server,
    ServerQueue,
)
from qworker.transports.lease import Revocation
from qworker.transports.nats.client import Client, Post, Refused, read_answer
from qworker.transports.nats.inbox import StreamEntry, StreamReader
from qworker.transports.nats.queue import BATCH, NatsQueue, publish, written
from qworker.transports.nats.url import LETTERS, Address, Layout, read_url, token
from qworker.transports.nats.wire import WireMessage
from qworker.transports.own_headers import QUEUE
from qworker.transports.portions import portions

if TYPE_CHECKING:
    from qworker.conf import Settings

NO_MESSAGE = frozenset({10037, 10043, 10057})
"""JetStream's errors for deleting a missing message."""


class LetterQueue(ServerQueue):
    """Dead letters or failed tasks: a stream, which the server itself keeps within limits.

    Reading does not take them out: they are read, and deleted by number. See NatsQueue. name: the kind of the
    letters: DEAD, FAILED. A take() continues where the last one ended; declare the queue again to start from
    the beginning.
    """

    batch = BATCH

    def __init__(self, connection: Client, name: str, layout: Layout) -> None:
        self.name = name
        self._connection = connection
        self._layout = layout
        self._stream = layout.letters_stream(name)
        self._reading: StreamReader | None = None

    def send(self, entries: Sequence[NewMessage]) -> None:
        posts = []
        for text, *_ in entries:
            queue = str(parsed(text).headers.get(QUEUE, ""))
            posts.append(
                Post(self._layout.letter_subject(self.name, queue), text.encode("utf-8", "surrogatepass"))
            )
        publish(self._connection, self._stream, posts, [entry.id for entry in entries])

    def take(self, count: int, seconds: float) -> list[Received]:
        if self._reading is None:
            self._reading = StreamReader(self._connection, self._stream)
        return [
            Received(
                self,
                found.data.decode("utf-8", "replace"),
                id=f"{found.number}.{found.stored}",
                receipt=found.number,
                lease_seconds=float("inf"),
                redelivered=False,
            )
            for found in self._reading.read(count)
        ]

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        return []

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        """Does nothing: they are still in the stream."""

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        subject = f"{self._connection.api}.STREAM.MSG.DELETE.{self._stream}"
        posts = [Post(subject, written({"seq": one.receipt, "no_erase": True})) for one in messages]
        return [
            one
            for one, answer in zip(messages, self._connection.exchange(posts), strict=True)
            if not _was_there(answer)
        ]

    def count(self) -> Count:
        found = self._connection.ask(f"STREAM.INFO.{self._stream}")
        return Count(int(found["state"]["messages"]))

    def purge(self) -> int:
        return int(self._connection.ask(f"STREAM.PURGE.{self._stream}")["purged"])


def _was_there(answer: WireMessage) -> bool:
    """Whether the message to be deleted existed."""
    try:
        read_answer(answer)
    except Refused as error:
        if error.code not in NO_MESSAGE:
            raise
        return False
    return True


def encoded(id: str, terminate: bool, signal: str) -> bytes:
    """Return the data of a revocation."""
    return json.dumps({"id": id, "terminate": terminate, "signal": signal}).encode()


class RevocationStream(ReceivedRevocations):
    """The revocations received over *connection*, in a stream that every worker reads from its beginning.

    The server drops messages older than revoke_expires. A plain subscription announces new ones; the stream
    is then read from there on, and again after a lost connection. Numbers are the microseconds at which the
    server stored them: they do not restart after a loss of data. notify: called in the connection's thread.
    """

    def __init__(self, layout: Layout, connection: Client, notify: Callable[[], None]) -> None:
        self._stream = layout.revoked_stream
        self._connection = connection
        self._notify = notify
        self._news = True
        self._reconnects = connection.reconnects
        connection.subscribe(layout.revoked_subject, self._receive)

    def _receive(self, message: WireMessage) -> None:
        self._news = True
        self._notify()

    @property
    def has_news(self) -> bool:  # type: ignore[override]
        return self._news or self._reconnects != self._connection.reconnects

    def since(self, cursor: int) -> tuple[int, list[Revocation]]:
        self._news, self._reconnects = False, self._connection.reconnects
        try:
            entries = StreamReader(self._connection, self._stream, cursor * 1000 if cursor else None).rest()
        except BaseException:
            self._news = True
            raise
        found: list[Revocation] = []
        last = cursor
        for entry in entries:
            # Two stored in one microsecond may be returned twice, which does no harm.
            if entry.stored > cursor * 1000:
                last = max(last, -(-entry.stored // 1000))
                revocation = _read(entry)
                if revocation is not None:
                    found.append(revocation)
        return last, found


def _read(entry: StreamEntry) -> Revocation | None:
    """Return the contents of a message; None for a foreign one."""
    try:
        value = json.loads(entry.data)
        return Revocation(str(value["id"]), bool(value["terminate"]), str(value["signal"]))
    except (ValueError, KeyError, TypeError):
        return None


NO_STREAM, NO_CONSUMER, OTHERWISE_CONFIGURED, NO_JETSTREAM = 10059, 10014, 10058, 10076
GONE = frozenset({NO_STREAM, NO_CONSUMER, 503, 409})
REFUSING = ("authorization", "authentication", "credentials", "permissions")
WAIT_SECONDS = 10.0


class StreamConfig(NamedTuple):
    """Settings of the streams. replicas: of each. duplicate_seconds: how long ids of messages are remembered.
    dead_seconds, dead_max: how long dead letters are kept, and how many of each queue.
    failed_seconds, failed_max: the same for failed tasks. revoke_seconds: how long revocations are kept."""

    replicas: int = 1
    duplicate_seconds: float = 30.0
    dead_seconds: float = 604800.0
    dead_max: int = 10000
    failed_seconds: float = 604800.0
    failed_max: int = 10000
    revoke_seconds: float = 86400.0

    def of(self, kind: str) -> tuple[float, int]:
        """Return how many seconds letters of a *kind* are kept, and how many of each queue."""
        if kind == FAILED:
            return self.failed_seconds, self.failed_max
        return self.dead_seconds, self.dead_max


class NatsServer(Server):
    """lease_seconds: how long a dead worker keeps its messages; set when a consumer declares the queue."""

    letters = tuple(LETTERS)
    notices_interrupts = spreads_revocations = purges_leased = True

    def __init__(
        self,
        url: str,
        address: Address,
        layout: Layout,
        stream_config: StreamConfig,
        lease_seconds: float,
        timeout: float,
    ) -> None:
        super().__init__(url, timeout)
        self.shown = address.shown
        self.layout = layout
        self.stream_config = stream_config
        self._address = address
        self._lease_seconds = lease_seconds
        self.wait_seconds = min(WAIT_SECONDS, lease_seconds / 2)
        self._answered = False

    # -- connecting --

    def connect(self) -> Client:
        try:
            connection = Client(self._address, self.timeout)
        except (OSError, ValueError) as error:
            reraise_interrupt(error)
            raise self._meaning(f"{type(error).__name__}: {error}".rstrip(": ")) from None
        self._answered = True
        return connection

    def _meaning(self, text: str) -> ConfigurationError | BrokerUnavailable:
        """Return our error for *text*, a connection error."""
        if not self._answered and any(word in text.lower() for word in REFUSING):
            return ConfigurationError(
                f"broker_url: {self.shown} refuses the login: {text}; write the user and password, or the "
                "token, into the URL, before the @",
                setting="broker_url",
            )
        text = while_connecting(text, self._address.tls is not None)
        return BrokerUnavailable(f"{self.shown}: {explained(text, NATS)}")

    @contextmanager
    def errors(self, connection: Client) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            if error.code in GONE:
                raise QueueGone(f"{self.shown}: {error}") from error
            raise BrokerUnavailable(f"{self.shown}: {error}") from error
        except OSError as error:
            reraise_interrupt(error)
            raise BrokerUnavailable(
                f"{self.shown} does not answer: {type(error).__name__}: {error}".rstrip(": ")
            ) from error

    # -- declaring --

    def declare(self, connection: Client, queue: str) -> ServerQueue:
        layout, stream_config = self.layout, self.stream_config
        if queue in LETTERS:
            seconds, most = stream_config.of(queue)
            self._declare_stream(
                connection,
                layout.letters_stream(queue),
                layout.letter_subject(queue, None),
                retention="limits",
                max_age=int(seconds * 1e9),
                max_msgs_per_subject=most,
            )
            return LetterQueue(connection, queue, layout)
        seconds, consumer = self._declare_consumer(connection, queue, change=False)
        return NatsQueue(
            connection,
            queue,
            stream=layout.stream,
            subject=layout.subject(queue),
            consumer=consumer,
            lease_seconds=seconds,
        )

    def sources(self, connection: Client, queues: Sequence[ServerQueue]) -> Sequence[PollSource]:
        """Return the queues, whose leases now have this worker's duration; each has a thread."""
        connection.share()
        for queue in queues:
            assert isinstance(queue, NatsQueue)
            queue.lease_seconds, _ = self._declare_consumer(connection, queue.name, change=True)
        return queues

    def names(self, connection: Client) -> set[str]:
        """Return the queues: each has a consumer, whose description is the queue's name."""
        found: set[str] = set()
        total, seen = 1, 0
        while seen < total:
            try:
                answer = connection.ask(f"CONSUMER.LIST.{self.layout.stream}", {"offset": seen})
            except Refused as error:
                if error.code not in GONE:
                    raise
                break
            consumers = answer.get("consumers") or []
            total, seen = int(answer["total"]), seen + len(consumers)
            found.update(str(one["config"].get("description") or one["name"]) for one in consumers)
            if not consumers:
                break
        return found

    def revoke(self, connection: Client, ids: Sequence[str], terminate: bool, signal: str) -> None:
        self.declare_revocations(connection)
        posts = (Post(self.layout.revoked_subject, encoded(id, terminate, signal)) for id in ids)
        for batch in portions(posts, BATCH):
            publish(connection, self.layout.revoked_stream, batch, task_ids())

    def revocations(self, connection: Client, notify: Callable[[], None]) -> RevocationStream:
        self.declare_revocations(connection)
        return RevocationStream(self.layout, connection, notify)

    def declare_revocations(self, connection: Client) -> None:
        """Create the stream of revocations."""
        self._declare_stream(
            connection,
            self.layout.revoked_stream,
            self.layout.revoked_subject,
            retention="limits",
            max_age=int(self.stream_config.revoke_seconds * 1e9),
        )

    def _declare_stream(self, connection: Client, name: str, subject: str, **more: Any) -> str:
        """Create the stream *name* if missing; return its time of creation, as digits."""
        if name in connection.declared:
            return connection.declared[name]
        window = int(self.stream_config.duplicate_seconds * 1e9)
        age = more.get("max_age")
        wanted = {
            "name": name,
            "subjects": [subject],
            "storage": "file",
            "discard": "old",
            "num_replicas": self.stream_config.replicas,
            "duplicate_window": min(window, age) if age else window,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "max_consumers": -1,
            **more,
        }
        try:
            found = connection.ask(f"STREAM.CREATE.{name}", wanted)
        except Refused as error:
            if error.code == 503 or error.code == NO_JETSTREAM or "jetstream" in str(error).lower():
                raise ConfigurationError(
                    f"broker_url: JetStream is not available at {self.shown} ({error}): start nats-server "
                    "with -js, or enable it for this account",
                    setting="broker_url",
                ) from error
            if error.code != OTHERWISE_CONFIGURED:
                raise
            there = connection.ask(f"STREAM.INFO.{name}")["config"]
            ours = (
                "subjects", "num_replicas", "duplicate_window", "max_age", "max_msgs_per_subject", "discard",
            )  # fmt: skip
            change = {key: wanted[key] for key in ours if key in wanted}
            found = connection.ask(f"STREAM.UPDATE.{name}", {**there, **change})
        made = connection.declared[name] = "".join(filter(str.isdigit, str(found["created"])))
        return made

    def _declare_consumer(self, connection: Client, queue: str, change: bool) -> tuple[float, str]:
        """Create the consumer of *queue* if missing, and return its ack_wait, which is only changed on
        request, and its name."""
        layout, stream, seconds = self.layout, self.layout.stream, self._lease_seconds
        subjects = layout.subject("x").rpartition(".")[0] + ".*"
        # If the stream gets a limit, senders get an error when it is full, and its messages are kept.
        made = self._declare_stream(connection, stream, subjects, retention="workqueue", discard="new")
        name = layout.consumer(queue, made)
        try:
            there = connection.ask(f"CONSUMER.INFO.{stream}.{name}")["config"]
            if not change or there["ack_wait"] == int(seconds * 1e9):
                return float(there["ack_wait"]) / 1e9, name
            config = {**there, "ack_wait": int(seconds * 1e9)}
        except Refused as error:
            if error.code != NO_CONSUMER:
                raise
            config = {
                "durable_name": name,
                "description": queue,
                "filter_subject": layout.subject(queue),
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "replay_policy": "instant",
                "ack_wait": int(seconds * 1e9),
                "max_deliver": -1,  # giving up a message is for the worker
                "max_ack_pending": -1,  # delayed messages count as delivered, and must not block others
                "max_waiting": 10000,
            }
        connection.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
        return seconds, name


CAPABILITIES = Capabilities(
    "NATS JetStream",
    ("nats", "tls"),
    accepted="stored by the stream's leader and most of its replicas (one, by default); on its disk when "
    "the server syncs (`sync_interval`, 2 min if not set); of many sent together, some may be "
    "accepted although an error was raised",
    redelivered="when it was not renewed for worker_lease_seconds (the consumer's `ack_wait`)",
    eta="given back to the server with a delay, until it is due (30 s ahead in a worker)",
    priority="none: first come, first served",
    fanout="a stream, read by all workers, also those that start later",
    dead_letters="a stream of their own, which the server keeps within the limits of the settings",
    failed_tasks="a similar stream; sending one again first sends it and then deletes it",
    delivery_count="in a header, when a worker notices the death of a process; the death of a whole worker "
    "is not counted",
    note="A delayed message counts as ready until a worker has seen it, and then as leased. A purge also "
    "deletes running messages: they are lost if their worker dies. A message is at most `max_payload` (1 MB) "
    "long. JetStream writes acknowledgements in the background: after the server is killed, messages "
    "acknowledged in the last moment may come again.",
    lacks=frozenset(Capability)
    - {Capability.ETA, Capability.FANOUT, Capability.DEAD_LETTERS, Capability.FAILED_TASKS},
    in_part={Capability.DELIVERY_COUNT: "of processes, not of whole workers"},
)
OPTIONS = {"stream": str, "replicas": int, "duplicate_window": float}
STREAM = "qworker"


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    options = _options(conf.broker_transport_options)
    address = read_url(url or "nats://", conf.broker_use_ssl)
    stream_config = StreamConfig(
        replicas=options.get("replicas", 1),
        duplicate_seconds=options.get("duplicate_window", 30.0),
        dead_seconds=conf.dead_letter_expires,
        dead_max=conf.dead_letter_max,
        failed_seconds=conf.failed_task_expires,
        failed_max=conf.failed_task_max,
        revoke_seconds=conf.revoke_expires,
    )
    server = NatsServer(
        url or "nats://",
        address,
        Layout(options.get("stream", STREAM)),
        stream_config,
        # Whole seconds: leases are renewed three times in that.
        max(1.0, math.ceil(conf.worker_lease_seconds)),
        conf.broker_connection_timeout,
    )
    return held_broker(url or "nats://", server, conf)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return broker_transport_options, converted. ConfigurationError for unknown names and invalid values."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = OPTIONS.get(name)
        if kind is None:
            raise ConfigurationError(
                f"broker_transport_options: NATS has no option {name!r}; use one of {', '.join(OPTIONS)}",
                setting="broker_transport_options",
            )
        try:
            found[name] = kind(value)
        except (TypeError, ValueError):
            found[name] = None
        if not found[name] or (kind is str and token(found[name]) != found[name]):
            raise ConfigurationError(
                f"broker_transport_options: {name} of NATS cannot be {value!r}",
                setting="broker_transport_options",
            )
    return found
