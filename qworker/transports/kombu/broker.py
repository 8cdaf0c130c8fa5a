"""Any broker that kombu has a transport for and we have none of our own: Kafka, files, memory…

Comes from:  ``broker_url`` with such a scheme.
Goes to:     kombu, by a sender, a consumer and an administration.
Thread:      any; one connection publishes, in turn, one belongs to the listener; neither crosses a fork.

It promises what the transport does (see ``transports/capabilities.py``), and polls. What kombu has no word
for is done without: a message that is due later is held by the worker, unacknowledged; dead letters go to a
queue; revocations do not spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from qworker.clock import SYSTEM_CLOCK, Clock
from qworker.process.forked import forgetful
from qworker.process.wakeup import WakeupPipe
from qworker.transports.capabilities import capabilities_of
from qworker.transports.kombu.admin import KombuAdmin
from qworker.transports.kombu.consumer import NEWS, KombuConsumer
from qworker.transports.kombu.sender import KombuSender
from qworker.transports.kombu.server import KombuServer
from qworker.transports.lease import Broker, FailedTasks

if TYPE_CHECKING:
    from qworker.conf import Settings

_brokers = forgetful()


class KombuBroker(Broker):
    """sender, consumer, admin: of one server. failed: where it keeps failed tasks. Connects at the first use,
    not before."""

    sender: KombuSender
    consumer: KombuConsumer
    admin: KombuAdmin

    def __init__(
        self,
        url: str,
        sender: KombuSender,
        consumer: KombuConsumer,
        admin: KombuAdmin,
        failed: FailedTasks | None = None,
    ) -> None:
        self.url = url
        self.lacks = capabilities_of(url).lacks
        self.sender = sender
        self.consumer = consumer
        self.admin = admin
        self.failed = failed
        _brokers.add(self)

    def _after_fork(self) -> None:
        self.sender.after_fork()
        self.consumer.after_fork()
        self.admin.after_fork()

    def close(self) -> None:
        try:
            self.consumer.deregister()
        finally:
            self.sender.close()
            self.consumer.close()


def kombu_broker(
    url: str,
    *,
    options: dict[str, Any] | None = None,
    known: Sequence[str] = (),
    eta_limit: int = 1000,
    poll: float = 0.2,
    timeout: float = 4.0,
    use_ssl: Any = None,
    clock: Clock = SYSTEM_CLOCK,
) -> KombuBroker:
    """The broker at *url*. options: transport_options for kombu. known: queues to be listed. eta_limit: how
    many messages that are not due yet a worker holds. poll: seconds between looks. timeout: seconds for
    connecting."""
    server = KombuServer(url, options or {}, timeout, use_ssl)
    wakeup = WakeupPipe()
    sender = KombuSender(server, clock, partial(wakeup.wake, NEWS))
    consumer = KombuConsumer(server, sender, wakeup, clock, eta_limit, poll)
    return KombuBroker(url, sender, consumer, KombuAdmin(server, sender, known))


def open_broker(url: str | None, conf: Settings) -> KombuBroker:
    """The broker at *url* with the settings *conf*; it is connected to at the first use. Raises
    ConfigurationError when a library is missing."""
    options = dict(conf.broker_transport_options)
    url = url or "memory://"
    KombuServer(url, options, conf.broker_connection_timeout, conf.broker_use_ssl).look_for_library()
    return kombu_broker(
        url,
        options=options,
        known=(conf.task_default_queue, *conf.task_queues),
        eta_limit=conf.worker_eta_task_limit,
        poll=float(options.get("polling_interval") or 0.2),
        timeout=conf.broker_connection_timeout,
        use_ssl=conf.broker_use_ssl,
    )
