"""IronMQ as a broker.

Comes from:  ``broker_url = "ironmq://…"``.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.ironmq.server import LEASE_SECONDS, IronServer

if TYPE_CHECKING:
    from qworker.conf import Settings


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
