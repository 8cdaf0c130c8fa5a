"""Disque: jobs in queues on several nodes, acknowledged by the worker that did them.

Comes from:  ``broker_url = "disque://[:password@]node1[:port],node2[:port]"``.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

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
from qworker.transports.disque.queue import Options
from qworker.transports.disque.server import WAIT_SECONDS, DisqueServer
from qworker.transports.held.broker import HeldBroker, held_broker

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "Disque",
    ("disque",),
    accepted="as many nodes as `replicate` says have it (three, or all where there are fewer); of many "
    "sent together, some may be accepted although an error was raised",
    redelivered="after `retry` seconds (30 if not set) without a sign that it is being worked on; a "
    "live worker sends that, and replaces a job when half of its `ttl` (30 days) is over",
    eta="in Disque (30 s early in a worker)",
    priority="none: first come, first served, about",
    fanout=NO_FANOUT,
    dead_letters=SENT_AGAIN,
    delivery_count=IN_A_HEADER,
    note="At least once; Disque deletes a job after its `ttl`. After the restart of a node with a "
    "file, its jobs come back at their retry time.",
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
    return held_broker(
        server.url,
        server,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )


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
