"""Amazon SQS, with messages in the format of kombu's transport.

Comes from:  ``broker_url = "sqs://…"``.
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
    Capabilities,
    Capability,
)
from qworker.transports.connect_errors import refuse_parameters, refuse_setting
from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.sqs.server import LEASE_SECONDS, SqsServer

if TYPE_CHECKING:
    from qworker.conf import Settings

CAPABILITIES = Capabilities(
    "Amazon SQS",
    ("sqs", "sqs+https"),
    accepted="SQS has answered that it has the message; of many sent together, some may be accepted "
    "although an error was raised",
    redelivered="when its visibility timeout ends (`visibility_timeout`, 30 s if not set); a live "
    "worker renews that, so tasks may take longer",
    eta="in SQS, which delays a message by 15 minutes at most, so it is sent again until it is due (30 "
    "s early in a worker); FIFO queues: like the plain transports",
    priority="none: first come, first served",
    fanout=NO_FANOUT,
    dead_letters="sent to the queue `qworker-dead`, then acknowledged",
    delivery_count=IN_A_HEADER,
    note="At least once; in order in FIFO queues only. A purge also deletes running messages, in case "
    "their worker dies.",
    lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
    in_part=PROCESSES_ONLY,
)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use."""
    refuse_setting(
        conf.broker_use_ssl,
        "SQS is reached by HTTPS, as sqs:// or sqs+https://; AWS_CA_BUNDLE names the file of an authority of "
        "your own",
    )
    refuse_parameters(url or "", "broker_url")
    options = dict(conf.broker_transport_options)
    scheme, _, rest = (url or "").partition("://")
    if scheme.endswith("+https"):
        options["is_secure"] = True
    # The lease is renewed three times in worker_lease_seconds, and must not be shorter.
    visibility = max(
        int(options.get("visibility_timeout") or LEASE_SECONDS), math.ceil(conf.worker_lease_seconds)
    )
    server = SqsServer(f"sqs://{rest}", options, visibility, conf.broker_connection_timeout)
    return held_broker(
        server.url,
        server,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )
