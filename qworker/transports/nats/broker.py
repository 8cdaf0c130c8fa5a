"""NATS JetStream: opening the broker, and its capabilities.

Comes from:  ``broker_url = "nats://…"``, by the entry point.
Goes to:     ``transports/held/``, with the modules of this package.
Thread:      any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError
from qworker.transports.capabilities import Capabilities, Capability
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.nats.server import NatsServer, StreamConfig
from qworker.transports.nats.url import Layout, read_url, token

if TYPE_CHECKING:
    from qworker.conf import Settings

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
    note="A delayed message counts as ready until a worker has seen it, and as leased then. A purge also "
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
    place = read_url(url or "nats://", conf.broker_use_ssl)
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
        place,
        Layout(options.get("stream", STREAM)),
        stream_config,
        # Whole seconds: leases are renewed three times in that.
        max(1.0, math.ceil(conf.worker_lease_seconds)),
        conf.broker_connection_timeout,
    )
    return held_broker(
        url or "nats://",
        server,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Return broker_transport_options, converted. ConfigurationError for unknown names and invalid values."""
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
