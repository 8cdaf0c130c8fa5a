"""The brokers: a Broker for each URL scheme that we have one for.

Comes from:  ``app.broker``.
Goes to:     the store's module, imported when its scheme is asked for.
Thread:      any.

Modules, in reading order: ``lease`` (what a broker promises), ``presence`` (what a worker tells by it),
``capabilities`` (what it may lack),
``lease_consumer`` (what consumers share), ``owner_files`` (who is dead), ``failover`` (one after another),
``group_commit``, ``wakeup``, ``connect_errors``, ``tls``, ``forked``, ``own_headers`` and ``delivery_fields``
(what is beside a message), ``join_parts`` (what a message is of a workflow), ``recent``, ``transfer`` (from
one broker to another), ``crash_points``. Packages: ``sqlite``, ``redis``, ``amqp``, ``sql``, ``mongodb``,
``kombu``, ``visibility`` (what servers share that hide what they give out), ``sqs``, ``ironmq``,
``disque``. Which of them know another is in the table of the architecture.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qworker.errors import ConfigurationError
from qworker.naming import near

if TYPE_CHECKING:
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
    "spool": "qworker.spooler.broker",
}
"""The module for each scheme; it has ``open_broker(url, conf)``, which returns the store and opens nothing
yet."""


PLAIN = "qworker.transports.kombu.broker"
"""The module for every other scheme that kombu has a transport for."""


def register() -> None:
    """Teach kombu, and so Celery, that ``sqlite:///path`` is the embedded broker."""
    from kombu.transport import TRANSPORT_ALIASES

    TRANSPORT_ALIASES["sqlite"] = "qworker.transports.kombu.channel:Transport"


def broker_urls(url: str | None) -> list[str]:
    """The URL of each broker that the setting ``broker_url`` names; [] for None. Sentinels are one broker
    together."""
    if url is None:
        return []
    return [url] if url.startswith("sentinel:") else url.split(";")


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
    scheme = (url or "sqlite://").partition(":")[0]
    module = SCHEMES.get(scheme) or SCHEMES.get(scheme.partition("+")[0])
    if module is None and _kombu_has(scheme):
        module = PLAIN
    if module is None:
        guesses = near(scheme, SCHEMES)
        hint = f"did you mean {guesses[0]}://?" if guesses else f"there are {', '.join(SCHEMES)}"
        raise ConfigurationError(
            f"broker_url: there is no broker for {scheme}://; {hint}. Leave broker_url unset for the "
            "embedded broker",
            setting="broker_url",
        )
    store: Broker = import_module(module).open_broker(url, conf)
    return store


def _kombu_has(scheme: str) -> bool:
    """Whether kombu has a transport for *scheme*."""
    from kombu.transport import TRANSPORT_ALIASES

    return scheme in TRANSPORT_ALIASES or scheme.partition("+")[0] in TRANSPORT_ALIASES
