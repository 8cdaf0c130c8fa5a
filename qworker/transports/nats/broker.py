"""NATS JetStream: the sides beside this module, put together; and its row of capabilities.

Comes from:  ``broker_url = "nats://…"``, by the entry point.
Goes to:     ``transports/held/``, with what is beside this module.
Thread:      any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.errors import ConfigurationError
from qworker.naming import task_ids
from qworker.process.wakeup import WakeupPipe
from qworker.transports.capabilities import Capabilities, Capability
from qworker.transports.held.admin import RemoteAdmin
from qworker.transports.held.consumer import RemoteConsumer
from qworker.transports.held.failed import RemoteFailed
from qworker.transports.held.queue import batches
from qworker.transports.held.sender import RemoteSender
from qworker.transports.held.server import QueueGone
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.consumer import NEWS
from qworker.transports.kombu.server import close
from qworker.transports.lease import Envelope
from qworker.transports.nats.direct import Connection, DirectConnection, Post
from qworker.transports.nats.queue import BATCH, publish
from qworker.transports.nats.revocations import encoded
from qworker.transports.nats.server import Keeping, NatsServer
from qworker.transports.nats.url import Layout, read_url, token

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "NATS JetStream",
    ("nats", "tls"),
    accepted="stored by the stream's leader and most of its replicas (one, if `replicas` says no more); on "
    "its disk when the server syncs (`sync_interval`, 2 min if not set); of many sent together, some may be "
    "accepted although an error was raised",
    redelivered="when nobody renewed it for worker_lease_seconds (the consumer's `ack_wait`)",
    eta="given back to the server with a delay, until it is due (30 s ahead in a worker)",
    priority="none: first come, first served",
    fanout="a stream, read by all workers, also those that start later",
    dead_letters="a stream of their own, which the server keeps within the limits of the settings",
    failed_tasks="a stream like that; who sends one again sends it first and deletes it then",
    delivery_count="in a header, when a worker sees the death of a process; the death of a whole worker is "
    "not counted",
    note="What is delayed counts as ready until a worker has seen it, and as leased then. A purge also "
    "deletes what is being run, should its worker die. A message is at most `max_payload` (1 MB) long. "
    "JetStream writes down in the background what was acknowledged: of what was so in the last moment before "
    "the server is killed, some comes again.",
    lacks=frozenset(Capability)
    - {Capability.ETA, Capability.FANOUT, Capability.DEAD_LETTERS, Capability.FAILED_TASKS},
    in_part={Capability.DELIVERY_COUNT: "of processes, not of whole workers"},
)
OPTIONS = {"stream": str, "replicas": int, "duplicate_window": float}
STREAM = "qworker"


def nats_broker(
    url: str,
    server: NatsServer,
    *,
    known: Sequence[str] = (),
    eta_limit: int = 1000,
    clock: Clock = SYSTEM_CLOCK,
) -> KombuBroker:
    """The broker at *url*, which is *server*; the rest is as in remote_broker()."""
    wakeup = WakeupPipe()
    sender = NatsSender(server, clock, partial(wakeup.wake, NEWS))
    consumer = RemoteConsumer(server, sender, wakeup, clock, eta_limit)
    admin = NatsAdmin(server, sender, known)
    return KombuBroker(url, sender, consumer, admin, RemoteFailed(admin, sender))


def open_broker(url: str | None, conf: Settings) -> KombuBroker:
    """The broker at *url* with the settings *conf*; it is connected to at the first use."""
    options = _options(conf.broker_transport_options)
    place = read_url(url or "nats://", conf.broker_use_ssl)
    keeping = Keeping(
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
        place,
        Layout(options.get("stream", STREAM)),
        keeping,
        # Whole seconds: what is hidden is renewed thrice in that.
        max(1.0, math.ceil(conf.worker_lease_seconds)),
        conf.broker_connection_timeout,
    )
    return nats_broker(
        url or "nats://",
        server,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """broker_transport_options, of the types that we want."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        kind = OPTIONS.get(name)
        if kind is None:
            raise ConfigurationError(
                f"broker_transport_options: NATS has no option {name!r}; there are {', '.join(OPTIONS)}",
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


# -- Administration of JetStream, which knows all its queues: each has a consumer --


class NatsAdmin(RemoteAdmin):
    """See RemoteAdmin."""

    _server: NatsServer

    @property
    def purges_leased(self) -> bool:
        return True

    def _names(self) -> set[str]:
        connection: Connection = self._server.connect()
        try:
            with self._server.errors(connection):
                return super()._names() | set(self._there(connection))
        except QueueGone:
            return super()._names()
        finally:
            close(connection)

    def _there(self, connection: Connection) -> list[str]:
        """The names of all queues that the server has a consumer of."""
        found: list[str] = []
        total = 1
        seen = 0
        while seen < total:
            answer: dict[str, Any] = connection.ask(
                f"CONSUMER.LIST.{self._server.layout.stream}", {"offset": seen}
            )
            consumers = answer.get("consumers") or []
            total, seen = int(answer["total"]), seen + len(consumers)
            found += [str(one["config"].get("description") or one["name"]) for one in consumers]
            if not consumers:
                break
        return found


# -- Publishing to JetStream, and calling tasks off --


class NatsSender(RemoteSender):
    """See RemoteSender."""

    _server: NatsServer

    def _connect(self) -> DirectConnection:
        return self._server.connect_directly()

    def push(self, envelopes: Sequence[Envelope], timeout: float = 10.0) -> None:
        self.send(self._outgoing(envelopes), timeout)  # who is interrupted leaves a connection that knows it

    def revoke(self, ids: Sequence[str], terminate: bool = False, signal: str = "SIGTERM") -> None:
        self._publishing(10.0, lambda: self._revoke(ids, terminate, signal))
        self._notify()

    def _revoke(self, ids: Sequence[str], terminate: bool, signal: str) -> None:
        layout = self._server.layout
        self._server.declare_revocations(self._connection)
        posts = (Post(layout.revoked_subject, encoded(id, terminate, signal)) for id in ids)
        for batch in batches(posts, BATCH):
            publish(self._connection, layout.revoked_stream, batch, task_ids())
