"""The brokers: a Broker for each supported URL scheme.

Comes from:  ``app.broker``.
Goes to:     the store's module, imported when its scheme is used.
Thread:      any.

Modules, in reading order: ``lease`` (the interface of a broker), ``presence`` (the status of workers),
``capabilities`` (what it may lack), ``schemes`` (which module opens it, ours or another package's),
``lease_consumer`` (shared code of consumers), ``failover`` (several brokers in turn), ``connect_errors``,
``tls``, ``own_headers`` (internal headers beside a message), ``join_parts`` (a message's parts of joins),
``recent``, ``portions``, ``transfer`` (moving messages between brokers). Packages: ``sql``, ``redis``,
``amqp``, ``mongodb``, ``held`` (brokers of servers that reserve delivered messages), ``kombu``, ``sqs``,
``ironmq``, ``disque``, ``nats``; the table of the architecture says which of them import another.
``as_kombu`` offers all of them to users of kombu, ``registry`` stores its queues and bindings.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError
from qworker.naming import close_matches
from qworker.transports.schemes import OURS, PLAIN, names, opened, own, registered

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from qworker.conf import Settings
    from qworker.transports.lease import Broker

SCHEMES = {
    "sqlite": "qworker.transports.sql.embedded.broker",
    **dict.fromkeys(
        ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel"), "qworker.transports.redis.broker"
    ),
    **dict.fromkeys(("postgresql", "postgres", "mysql", "mariadb"), "qworker.transports.sql.broker"),
    "mongodb": "qworker.transports.mongodb.broker",
    **dict.fromkeys(("amqp", "amqps", "pyamqp"), "qworker.transports.amqp.broker"),
    "sqs": "qworker.transports.sqs.broker",
    "ironmq": "qworker.transports.ironmq.broker",
    "disque": "qworker.transports.disque.broker",
    "spool": "qworker.spooler.broker.spool_broker",
}
"""The module for each scheme of ours; it has ``open_broker(url, conf)``, which returns the store and opens
nothing yet, and ``CAPABILITIES``."""
KOMBU = "qworker.transports.kombu.broker"
"""The module for every other scheme that kombu has a transport for."""
OURS.update({**SCHEMES, PLAIN: KOMBU})

KOMBU_PREFIX = "qworker+"
"""The prefix that kombu's users put before the URL of one of our brokers."""


def register() -> None:
    """Register ``qworker+postgresql://…``, with any of our schemes, and ``sqlite:///path`` for the embedded
    broker, with kombu, and so Celery. Safe to call twice.

    If this package is installed kombu finds it by itself: see ``as_kombu/entry.py``.
    """
    from kombu.transport import TRANSPORT_ALIASES

    aliases: dict[str, Any] = TRANSPORT_ALIASES  # kombu accepts a function as well as a path
    aliases.update(dict.fromkeys(("sqlite", "qworker"), _for_kombu))
    # The second and later of several URLs keep their prefix.
    aliases.update({f"{KOMBU_PREFIX}{scheme}": _for_kombu for scheme in SCHEMES})


def _for_kombu() -> Any:
    """Return our transport for kombu, and pass it open_broker(), because it cannot import this package."""
    transport = import_module("qworker.transports.as_kombu.transport").Transport
    transport.open_broker = staticmethod(open_broker)
    return transport


def broker_urls(url: str | None) -> list[str]:
    """Return the URL of each broker in the setting ``broker_url``; [] for None. Several sentinels are one
    broker. Celery's prefix ``qworker+`` is ignored, so one URL works for both."""
    if url is None:
        return []
    urls = [url] if url.removeprefix(KOMBU_PREFIX).startswith("sentinel:") else url.split(";")
    return [each.removeprefix(KOMBU_PREFIX) for each in urls]


def open_broker(url: str | None, conf: Settings) -> Broker:
    """Return the store at *url* (None: the embedded broker at its default place), not opened yet.

    Several URLs, separated by ";", make one store that switches to the next when one is unavailable. Raises
    ConfigurationError for an unknown scheme, or when the required extra is missing.
    """
    urls = broker_urls(url)
    if len(urls) > 1:
        several = import_module("qworker.transports.failover").FailoverBroker
        stores = [open_broker(one, conf) for one in urls]
        together: Broker = several(stores, conf.broker_failover_strategy)
        return together
    url = urls[0] if urls else None
    scheme = (url or "sqlite://").partition(":")[0]
    module = own(scheme)
    if module is None and (point := registered(scheme)) is not None:
        return _of_another(point, url, conf)
    if module is None and _kombu_has(scheme):
        module = KOMBU
    if module is None:
        guesses = close_matches(scheme, (*SCHEMES, *names()))
        hint = (
            f"did you mean {guesses[0]}://?"
            if guesses
            else f"use one of {', '.join(dict.fromkeys((*SCHEMES, *names())))}."
        )
        raise ConfigurationError(
            f"broker_url: there is no broker for {scheme}://; {hint} Leave broker_url unset for the "
            "embedded broker",
            setting="broker_url",
        )
    store: Broker = import_module(module).open_broker(url, conf)
    if options := conf.broker_transport_options:
        import_module("qworker.transports.capabilities").warn(url, options)
    return store


def _of_another(point: EntryPoint, url: str | None, conf: Settings) -> Broker:
    """Return the broker of another package, registered as *point*."""
    store: Broker = opened(point, import_module("qworker.transports.lease").Broker, url, conf)
    return store


def _kombu_has(scheme: str) -> bool:
    """Return whether kombu has a transport for *scheme*."""
    from kombu.transport import TRANSPORT_ALIASES

    return scheme in TRANSPORT_ALIASES or scheme.partition("+")[0] in TRANSPORT_ALIASES
