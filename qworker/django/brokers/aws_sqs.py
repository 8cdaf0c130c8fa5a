"""The broker in Amazon SQS.

Comes from:  ``Q_CLUSTER['sqs']``.
Goes to:     the queues of qworker's transport there.
Thread:      any.
"""

from __future__ import annotations

from qworker.django.brokers.transported import TransportBroker


class Sqs(TransportBroker):
    """A queue in SQS."""

    kind = "sqs"
    name = "AWS SQS"
