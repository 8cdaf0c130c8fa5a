"""What tests leave behind on RabbitMQ. Comes from: tests with queues of their own. Goes to: the server."""

from __future__ import annotations

from contextlib import closing

from qworker.transports.amqp.link import Link, address_of


def forget_queues(url: str, *names: str) -> None:
    """Delete the queues of these *names* and the exchanges that are called the same, as Celery's are."""
    with closing(Link(address_of(url), 5.0)) as link:
        channel = link.channel()
        for name in names:
            link.call(channel.queue_delete, name)
            link.call(channel.exchange_delete, name)
