"""Any broker that kombu has a transport for and we have none of our own: Kafka, files, memory…

Comes from:  ``broker_url`` with such a scheme.
Goes to:     ``transports/held/``, with the server and the queues beside this module.
Thread:      any.

It supports what the transport supports (see ``transports/capabilities.py``), and polls. Features that kombu
lacks are replaced: a delayed message is held by the worker, unacknowledged; dead letters go to a queue;
revocations are not broadcast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qworker.transports.held.broker import HeldBroker, held_broker
from qworker.transports.kombu.server import KombuServer

if TYPE_CHECKING:
    from qworker.conf import Settings


def kombu_broker(
    url: str,
    *,
    options: dict[str, Any] | None = None,
    poll: float = 0.2,
    timeout: float = 4.0,
    use_ssl: Any = None,
    **more: Any,
) -> HeldBroker:
    """Return the broker at *url*. options: transport_options for kombu. poll: seconds between polls. timeout:
    seconds for connecting. more: as in held_broker()."""
    return held_broker(url, KombuServer(url, options or {}, timeout, use_ssl, poll), **more)


def open_broker(url: str | None, conf: Settings) -> HeldBroker:
    """Return the broker at *url* with the settings *conf*; it connects on first use. Raises
    ConfigurationError when a library is missing."""
    options = dict(conf.broker_transport_options)
    url = url or "memory://"
    server = KombuServer(
        url,
        options,
        conf.broker_connection_timeout,
        conf.broker_use_ssl,
        float(options.get("polling_interval") or 0.2),
    )
    server.look_for_library()
    return held_broker(
        url,
        server,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
    )
