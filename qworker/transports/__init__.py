"""The brokers: a Broker for each URL scheme that we have one for.

Comes from:  ``app.broker``.
Goes to:     the store's module, imported when its scheme is asked for.
Thread:      any.

Modules, in reading order: ``lease`` (what a broker promises), ``presence`` (what a worker tells by it),
``capabilities`` (what it may lack), ``registered`` (brokers of other packages),
``lease_consumer`` (what consumers share), ``failover`` (one after another), ``connect_errors``, ``tls``,
``own_headers`` (what is beside a message), ``join_parts`` (what a message is of a workflow), ``recent``,
``transfer`` (from one broker to another). Packages: ``sqlite``, ``redis``, ``amqp``, ``sql``, ``mongodb``,
``held`` (the brokers of servers that reserve what they give out), ``kombu``, ``sqs``, ``ironmq``, ``disque``,
``nats``; the table of the architecture says which of them know another. ``as_kombu`` is all of them for
kombu's users, ``registry`` what it keeps there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError
from qworker.naming import near
from qworker.transports.registered import check, load, names, registered

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from qworker.conf import Settings
    from qworker.transports.lease import Broker

SCHEMES = {
    "sqlite": "qworker.transports.sqlite.broker",
    "redis": "qworker.transports.redis.broker",
    "rediss": "qworker.transports.redis.broker",
    "valkey": "qworker.transports.redis.broker",
    "valkeys": "qworker.transports.redis.broker",
    "unix": "qworker.transports.redis.broker",
    "sentinel": "qworker.transports.redis.broker",
    "amqp": "qworker.transports.amqp.broker",
    "amqps": "qworker.transports.amqp.broker",
    "pyamqp": "qworker.transports.amqp.broker",
    "postgresql": "qworker.transports.sql.broker",
    "postgres": "qworker.transports.sql.broker",
    "mysql": "qworker.transports.sql.broker",
    "mariadb": "qworker.transports.sql.broker",
    "sqs": "qworker.transports.sqs.broker",
    "ironmq": "qworker.transports.ironmq.broker",
    "mongodb": "qworker.transports.mongodb.broker",
    "disque": "qworker.transports.disque.broker",
    "spool": "qworker.spooler.broker.spool_broker",
}
"""The module for each scheme; it has ``open_broker(url, conf)``, which returns the store and opens nothing
yet."""


KOMBU_PREFIX = "qworker+"
"""What kombu's users write before the URL of a broker of ours."""
PLAIN = "qworker.transports.kombu.broker"
"""The module for every other scheme that kombu has a transport for."""


def register() -> None:
    """Teach kombu, and so Celery, that ``qworker+postgresql://…`` is a broker of ours, with any scheme of
    ours, and ``sqlite:///path`` the embedded one. Safe to call twice.

    Where this package is installed kombu finds that out by itself: see ``as_kombu/entry.py``.
    """
    from kombu.transport import TRANSPORT_ALIASES

    aliases: dict[str, Any] = TRANSPORT_ALIASES  # kombu takes a function as well as a path
    aliases.update(dict.fromkeys(("sqlite", "qworker"), _for_kombu))
    # The second and later of several URLs keep their prefix.
    aliases.update({f"{KOMBU_PREFIX}{scheme}": _for_kombu for scheme in SCHEMES})


def _for_kombu() -> Any:
    """Our transport for kombu, which is told how brokers are opened: it is one of those rooms that do not
    know their front door."""
    transport = import_module("qworker.transports.as_kombu.transport").Transport
    transport.open_broker = staticmethod(open_broker)
    return transport


def broker_urls(url: str | None) -> list[str]:
    """The URL of each broker that the setting ``broker_url`` names; [] for None. Sentinels are one broker
    together. Celery's ``qworker+`` before a URL says nothing to us, so one URL may serve both."""
    if url is None:
        return []
    urls = [url] if url.removeprefix(KOMBU_PREFIX).startswith("sentinel:") else url.split(";")
    return [each.removeprefix(KOMBU_PREFIX) for each in urls]


def open_broker(url: str | None, conf: Settings) -> Broker:
    """Return the store at *url* (None: the embedded broker at its default place); nothing is opened yet.

    Several URLs, with ";" between them, make one store that goes to the next when one does not answer. Raises
    ConfigurationError for a scheme that there is no store for, or when the extra that it needs is missing.
    """
    urls = broker_urls(url)
    if len(urls) > 1:
        several = import_module("qworker.transports.failover").FailoverBroker
        stores = [open_broker(one, conf) for one in urls]
        together: Broker = several(stores, conf.broker_failover_strategy)
        return together
    url = urls[0] if urls else None
    scheme = (url or "sqlite://").partition(":")[0]
    module = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if module is None and (point := registered(scheme)) is not None:
        return _of_another(point, url, conf)
    if module is None and _kombu_has(scheme):
        module = PLAIN
    if module is None:
        guesses = near(scheme, (*SCHEMES, *names()))
        hint = (
            f"did you mean {guesses[0]}://?"
            if guesses
            else f"there are {', '.join(dict.fromkeys((*SCHEMES, *names())))}."
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
    """The broker that a package has registered with *point*."""
    store = load(point)(url, conf)
    check(point, store, import_module("qworker.transports.lease").Broker)
    opened: Broker = store
    return opened


def _kombu_has(scheme: str) -> bool:
    """Whether kombu has a transport for *scheme*."""
    from kombu.transport import TRANSPORT_ALIASES

    return scheme in TRANSPORT_ALIASES or scheme.partition("+")[0] in TRANSPORT_ALIASES
