"""IronMQ as a broker.

Comes from:  ``broker_url = "ironmq://…"``.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.ironmq.server import LEASE_SECONDS, IronServer

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "IronMQ",
    ("ironmq", "ironmq+http", "ironmq+https"),
    accepted="IronMQ has answered that it has the message; of many sent together, some may be accepted "
    "although an error was raised",
    redelivered="when its reservation ends (`visibility_timeout`, 30 s if not set); a live worker renews "
    "that, so tasks may take longer",
    eta="in IronMQ, which delays a message by 7 days at most, so it is given back until it is due (30 "
    "s early in a worker)",
    priority="none: first come, first served; what comes back comes first",
    fanout=NO_FANOUT,
    dead_letters=SENT_AGAIN,
    delivery_count=IN_A_HEADER,
    note="At least once. IronMQ deletes a message after 7 days, or after the queue's "
    "`message_expiration`; a purge also deletes running messages, in case their worker dies. "
    "Counts are partial: all messages of a queue count as ready.",
    lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
    in_part=PROCESSES_ONLY,
)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    url = url or "ironmq://"
    options = dict(conf.broker_transport_options)
    # The lease is renewed three times in worker_lease_seconds, and must not be shorter.
    visibility = max(
        int(options.get("visibility_timeout") or LEASE_SECONDS), math.ceil(conf.worker_lease_seconds)
    )
    return held_broker(
        url,
        IronServer(url, options, visibility, conf.broker_connection_timeout, conf.broker_use_ssl),
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )
