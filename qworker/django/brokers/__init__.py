"""brokers: where packages wait, as Django-Q has it: one class for each kind.

Comes from:  ``async_task``, monitors, and whoever writes a broker of their own.
Goes to:     the transports of qworker.
Thread:      any.

Modules, in reading order: ``base`` (the class that all have above them), ``taking`` (what dequeue() has
taken), ``transported`` (those over a transport of qworker), ``orm``, ``redis_broker``, ``aws_sqs``,
``disque``, ``ironmq``, ``mongo``, ``choice`` (which of them a project has), ``custom`` (a project's own, for
qworker's worker).
"""

from qworker.django.brokers.base import Broker
from qworker.django.brokers.choice import get_broker

__all__ = ["Broker", "get_broker"]
