"""Which broker a project has.

Comes from:  ``get_broker()``, asked by everything that publishes or looks.
Goes to:     the class of that kind.
Thread:      any.
"""

from __future__ import annotations

from django.utils.module_loading import import_string

from qworker.django.brokers.aws_sqs import Sqs
from qworker.django.brokers.base import Broker
from qworker.django.brokers.disque import Disque
from qworker.django.brokers.ironmq import IronMQBroker
from qworker.django.brokers.mongo import Mongo
from qworker.django.brokers.orm import ORM
from qworker.django.brokers.redis_broker import Redis
from qworker.django.conf import conf

KINDS: dict[str, type[Broker]] = {each.kind: each for each in (ORM, Redis, Sqs, Disque, IronMQBroker, Mongo)}


def get_broker(list_key: str | None = None) -> Broker:
    """Return a broker of the kind that the settings name.

    list_key (text): the name of its queue; None for this cluster's. Raises ConfigurationError when the
    settings name none that can be.
    """
    return broker_class()(list_key)


def broker_class() -> type[Broker]:
    """Return the class of the project's broker. Raises ConfigurationError as get_broker() does."""
    if conf.broker != "custom":
        return KINDS[conf.broker]
    found: type[Broker] = import_string(conf.broker_class)
    return found
