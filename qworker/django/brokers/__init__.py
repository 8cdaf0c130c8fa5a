"""brokers: Django-Q's broker classes, one for each kind.

Comes from:  ``async_task``, monitors, and authors of custom brokers.
Goes to:     the transports of qworker.
Thread:      any.

Modules, in reading order: ``base`` (the base class), ``taking`` (packages from dequeue()), ``transported``
(brokers over a transport of qworker), ``orm``, ``redis_broker``, ``aws_sqs``, ``disque``, ``ironmq``,
``mongo``, ``choice`` (which of them a project has), ``custom`` (a project's own, for qworker's worker).
"""

from qworker.django.brokers.base import Broker
from qworker.django.brokers.choice import get_broker

__all__ = ["Broker", "get_broker"]
