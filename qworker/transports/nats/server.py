"""Server: connecting to NATS, its errors, and creating streams and consumers.

Comes from:  the URL of the broker and ``broker_transport_options``.
Goes to:     ``client.py``.
Thread:      any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.naming import task_ids
from qworker.transports.connect_errors import NATS, explained, while_connecting
from qworker.transports.held.port import FAILED, QueueGone, Server, ServerQueue, Source
from qworker.transports.nats.client import Client, Post, Refused
from qworker.transports.nats.letters import LetterQueue
from qworker.transports.nats.queue import BATCH, NatsQueue, publish
from qworker.transports.nats.revocations import Revocations, encoded
from qworker.transports.nats.url import LETTERS, Layout, Place
from qworker.transports.portions import portions

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
    told_of_interrupts = spreads_revocations = purges_leased = True

    def __init__(
        self,
        url: str,
        place: Place,
        layout: Layout,
        stream_config: StreamConfig,
        lease_seconds: float,
        timeout: float,
    ) -> None:
        super().__init__(url, timeout)
        self.shown = place.shown
        self.layout = layout
        self.stream_config = stream_config
        self._place = place
        self._lease_seconds = lease_seconds
        self.wait_seconds = min(WAIT_SECONDS, lease_seconds / 2)
        self._answered = False

    # -- connecting --

    def connect(self) -> Client:
        try:
            connection = Client(self._place, self.timeout)
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
        text = while_connecting(text, self._place.tls is not None)
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

    def sources(self, connection: Client, queues: Sequence[ServerQueue]) -> Sequence[Source]:
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

    def revocations(self, connection: Client, notify: Callable[[], None]) -> Revocations:
        self.declare_revocations(connection)
        return Revocations(self.layout, connection, notify)

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
        # If somebody limits the stream, senders get an error when it is full, and its messages are kept.
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
