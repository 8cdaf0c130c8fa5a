"""Disque: jobs in queues on several nodes, acknowledged by the worker that did them.

Comes from:  ``broker_url = "disque://[:password@]node1[:port],node2[:port]"``.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.transports.capabilities import (
    DEAD_LETTERS,
    ETA,
    IN_A_HEADER,
    NO_FANOUT,
    PROCESSES_ONLY,
    SENT_AGAIN,
    Capabilities,
    Capability,
)
from qworker.transports.connect_errors import refuse_setting
from qworker.transports.disque.nodes import Cluster
from qworker.transports.disque.queue import AllQueues, DisqueQueue, Options, counts, every_node
from qworker.transports.disque.url import parsed
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.held.port import DEAD, Server, ServerQueue
from qworker.transports.lease import QueueInfo

if TYPE_CHECKING:
    from qworker.conf import Settings

SHELF_SECONDS = 120
"""Seconds for which a dead letter is hidden while it is being read."""
WAIT_SECONDS = 10.0


class Connection(NamedTuple):
    """waiting: for queries that wait for jobs, which block their connection. asking: for everything else."""

    asking: Cluster
    waiting: Cluster

    def release(self) -> None:
        self.asking.release()
        self.waiting.release()


class DisqueServer(Server):
    """options: of added jobs. wait_seconds: how long one query for jobs waits."""

    def __init__(
        self, url: str, options: Options, timeout: float, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        super().__init__(url, timeout)
        self.wait_seconds = wait_seconds
        self._nodes = parsed(url)
        self._options = options

    def connect(self) -> Connection:
        clusters = (Cluster(self._nodes, self.shown, self.timeout) for _ in range(2))
        connection = Connection(*clusters)
        connection.asking.connect()
        return connection

    @contextmanager
    def errors(self, connection: Connection) -> Iterator[None]:
        yield  # errors are BrokerUnavailable already

    def declare(self, connection: Connection, queue: str) -> DisqueQueue:
        options = self._options
        if queue == DEAD:
            options = options._replace(retry=SHELF_SECONDS, maxlen=None)
        return DisqueQueue(connection.asking, queue, options)

    def names(self, connection: Connection) -> set[str]:
        """Return all queues, including those that others have created."""
        answers = every_node(connection.asking, ("QSCAN", "BUSYLOOP"))
        return {name.decode("utf-8", "replace") for answer in answers for name in answer.replies[0][1]}

    def queue_infos(self, connection: Connection, queues: Sequence[str]) -> list[QueueInfo]:
        found = counts(connection.asking)
        return [QueueInfo(name, *count) for name, count in found.items() if name != DEAD]

    def sources(self, connection: Connection, queues: Sequence[ServerQueue]) -> Sequence[AllQueues]:
        return [AllQueues(connection.waiting, [one for one in queues if isinstance(one, DisqueQueue)])]


CAPABILITIES = Capabilities(
    "Disque",
    ("disque",),
    accepted="stored on as many nodes as `replicate` says (three, or all if there are fewer); of many "
    "sent together, some may be accepted although an error was raised",
    redelivered="after `retry` seconds (30 if not set) without a sign that it is being worked on; a "
    "live worker sends that, and replaces a job when half of its `ttl` (30 days) is over",
    eta="in Disque (30 s early in a worker)",
    priority="none: approximately first come, first served",
    fanout=NO_FANOUT,
    dead_letters=SENT_AGAIN,
    delivery_count=IN_A_HEADER,
    note="At least once; Disque deletes a job after its `ttl`. A node with an append-only "
    "file keeps its jobs across a restart, and delivers them again at their retry time.",
    lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
    in_part=PROCESSES_ONLY,
)

RETRY_SECONDS = 30
TTL_SECONDS = 30 * 86400
"""Disque forgets a job after that, whether it was done or not."""


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    refuse_setting(conf.broker_use_ssl, "Disque does not use TLS; reach it through a tunnel")
    given = dict(conf.broker_transport_options)
    # The lease is renewed three times in worker_lease_seconds, and must not be shorter.
    options = options_of(given, math.ceil(conf.worker_lease_seconds))
    server = DisqueServer(
        url or "disque://",
        options,
        conf.broker_connection_timeout,
        float(given.get("wait_time_seconds") or WAIT_SECONDS),
    )
    return held_broker(server.url, server, conf)


def options_of(given: dict[str, Any], least: int) -> Options:
    """Return the options in broker_transport_options. least: minimum seconds of retry. Raises
    ConfigurationError."""
    asked, ttl = _whole(given, "retry", 1), _whole(given, "ttl", 1)
    retry = max(least, RETRY_SECONDS if asked is None else asked)
    ttl = TTL_SECONDS if ttl is None else ttl
    if ttl < 4 * retry:
        raise ConfigurationError(
            f"broker_transport_options: ttl ({ttl} s) must be at least four times retry ({retry} s): Disque "
            "does not extend a job after half its time to live",
            setting="broker_transport_options",
        )
    return Options(
        retry,
        ttl,
        _whole(given, "replicate", 1),
        _whole(given, "maxlen", 1),
        bool(given.get("fastack", False)),
    )


def _whole(given: dict[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise ConfigurationError(
            f"broker_transport_options: {name}: {value!r} is not a whole number of at least {least}",
            setting="broker_transport_options",
        )
    return value
