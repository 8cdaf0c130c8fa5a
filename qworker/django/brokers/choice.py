"""choice: the project's broker.

Comes from:  callers of ``get_broker()``, which publish or read.
Goes to:     the class of that kind.
Thread:      any.
"""

from __future__ import annotations

from django.utils.module_loading import import_string

from qworker.django.brokers.base import Broker
from qworker.django.conf import conf
from qworker.errors import ConfigurationError
from qworker.naming import import_object

_HERE = "qworker.django.brokers"
KINDS = {
    "orm": f"{_HERE}.orm.ORM",
    "redis": f"{_HERE}.redis_broker.Redis",
    "sqs": f"{_HERE}.aws_sqs.Sqs",
    "disque": f"{_HERE}.disque.Disque",
    "ironmq": f"{_HERE}.ironmq.IronMQBroker",
    "mongo": f"{_HERE}.mongo.Mongo",
}
"""The class of each kind; only the one in use is imported."""


def get_broker(list_key: str | None = None) -> Broker:
    """Return a broker of the kind in the settings.

    list_key (text): the queue's name; None for this cluster's. Raises ConfigurationError if the settings are
    invalid.
    """
    return broker_class()(list_key)


def broker_class() -> type[Broker]:
    """Return the class of the project's broker. Raises ConfigurationError like get_broker()."""
    if conf.broker_class is not None:
        return custom_class(conf.broker_class)
    found: type[Broker] = import_string(KINDS[conf.broker])
    return found


def custom_class(path: str) -> type[Broker]:
    """Return the class at the dotted *path*. Raises ConfigurationError if it is not a subclass of Broker."""
    found = import_object(path)
    if not (isinstance(found, type) and issubclass(found, Broker)):
        raise ConfigurationError(
            f"Q_CLUSTER['broker_class'] is {path!r}, which is not a subclass of {_HERE}.Broker",
            setting="broker_class",
        )
    return found
