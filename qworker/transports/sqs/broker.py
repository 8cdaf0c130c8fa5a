"""Amazon SQS: messages as kombu's transport has them, sent, received, kept and deleted by us.

Comes from:  ``broker_url = "sqs://…"``.
Goes to:     the sender, the consumer and the administration beside this module, which are kombu's but for
             what is said there.
Thread:      any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.transports.kombu.broker import KombuBroker
from qworker.transports.kombu.consumer import NEWS
from qworker.transports.sqs.admin import SqsAdmin
from qworker.transports.sqs.consumer import SqsConsumer
from qworker.transports.sqs.sender import SqsSender
from qworker.transports.sqs.server import LEASE_SECONDS, SqsServer
from qworker.transports.wakeup import WakeupPipe

if TYPE_CHECKING:
    from qworker.conf import Settings


def sqs_broker(
    url: str,
    *,
    options: dict[str, Any],
    visibility: int,
    known: Sequence[str] = (),
    eta_limit: int = 1000,
    timeout: float = 4.0,
    clock: Clock = SYSTEM_CLOCK,
) -> KombuBroker:
    """SQS at *url*. visibility: seconds after which a dead worker's messages come back. The rest is as in
    kombu_broker()."""
    server = SqsServer(url, options, visibility, timeout)
    wakeup = WakeupPipe()
    sender = SqsSender(server, clock, partial(wakeup.wake, NEWS))
    consumer = SqsConsumer(server, sender, wakeup, clock, eta_limit)
    return KombuBroker(url, sender, consumer, SqsAdmin(server, sender, known))


def open_broker(url: str | None, conf: Settings) -> KombuBroker:
    """The broker at *url* with the settings *conf*; it is connected to at the first use."""
    options = dict(conf.broker_transport_options)
    scheme, _, rest = (url or "").partition("://")
    if scheme.endswith("+https"):
        options["is_secure"] = True
    return sqs_broker(
        f"sqs://{rest}",
        options=options,
        # The lease is renewed thrice in worker_lease_seconds, and must not end before that.
        visibility=max(
            int(options.get("visibility_timeout") or LEASE_SECONDS), math.ceil(conf.worker_lease_seconds)
        ),
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
        timeout=conf.broker_connection_timeout,
    )
