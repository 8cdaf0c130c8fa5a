"""Cleaning up RabbitMQ after tests. Comes from: tests with their own queues. Goes to: the server."""

from __future__ import annotations

from contextlib import closing

from qworker.transports.amqp.link import Link, address_of


def forget_queues(url: str, *names: str) -> None:
    """Delete the queues with these *names*, and the exchanges of the same names, which Celery declares."""
    with closing(Link(address_of(url), 5.0)) as link:
        channel = link.channel()
        for name in names:
            link.call(channel.queue_delete, name)
            link.call(channel.exchange_delete, name)
