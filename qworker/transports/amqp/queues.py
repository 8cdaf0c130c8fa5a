"""The queues in RabbitMQ: which there are to be, and with what arguments they are made.

Comes from:  the settings ``task_queues``, ``task_default_queue_type``, ``task_queue_max_priority``.
Goes to:     ``publisher.py`` and ``consumer.py``, over their links.
Thread:      any; nothing changes here.

A queue that is there already is taken as it is, whoever made it and with whatever arguments; so a Celery
worker and ours may meet in it, whoever came first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from amqp.exceptions import AccessRefused, ChannelError, NotFound

from qworker.errors import BrokerUnavailable, ConfigurationError
from qworker.transports.amqp.delays import DUE_EXCHANGE, binding
from qworker.transports.amqp.link import Link

DEAD = "qworker.dead"
FAILED = "qworker.failed"
REVOKED = "qworker.revoked"
WORKERS = "qworker.workers"
OURS = frozenset({DEAD, FAILED, REVOKED, WORKERS})
"""Queues of no tasks."""
WORKERS_SECONDS = 600
"""So long the stream of workers keeps at least what they tell."""
DOWN = "is down or inaccessible"
"""What RabbitMQ says of a queue that it has and does not serve: its node has just begun, or has left the
cluster. It calls that not found, too."""
LONGEST_TIME = 3650 * 86400 * 1000
"""Milliseconds: RabbitMQ refuses queues whose messages are to live for longer."""


class NotServed(BrokerUnavailable):
    """The server knows this queue and does not serve it: its node has just begun, or is gone. It may pass."""


def not_served(link: Link, queue: str, error: NotFound) -> NotServed:
    """*queue*: as it is called in the server."""
    return NotServed(
        f"RabbitMQ at {link.address.shown} has the queue {queue!r} and does not serve it "
        f"({error.reply_text}): if it stays so once all its nodes are up, it has lost what it kept of it, "
        "and another virtual host helps"
    )


@dataclass(frozen=True)
class Queues:
    """type: classic or quorum. max_priority: for new queues, None: none. declared: as task_queues. The rest:
    seconds, for the dead letters, the failed tasks and the revocations."""

    type: str = "classic"
    max_priority: int | None = None
    default: str = "celery"
    declared: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dead_expires: float = 604800.0
    failed_expires: float = 604800.0
    revoke_expires: float = 86400.0
    prefix: str = ""
    """Before the names of all queues in the server: for those who share a virtual host and want to be
    apart."""

    def known(self) -> list[str]:
        return sorted({self.default, *self.declared})

    def arguments(self, queue: str) -> dict[str, Any]:
        """What *queue* is made with."""
        if queue in (DEAD, FAILED):
            expires = int((self.dead_expires if queue == DEAD else self.failed_expires) * 1000)
            return {"x-message-ttl": expires} if expires <= LONGEST_TIME else {}
        if queue == REVOKED:
            return {
                "x-queue-type": "stream",
                "x-max-age": f"{max(1, int(self.revoke_expires))}s",
                "x-stream-max-segment-size-bytes": 1_000_000,
            }
        if queue == WORKERS:
            return {
                "x-queue-type": "stream",
                "x-max-age": f"{WORKERS_SECONDS}s",
                "x-stream-max-segment-size-bytes": 1_000_000,
            }
        options = self.declared.get(queue, {})
        given = dict(options.get("queue_arguments") or options.get("arguments") or {})
        if self.type == "quorum":
            given.setdefault("x-queue-type", "quorum")
        most = options.get("max_priority", self.max_priority)
        if most and given.get("x-queue-type", "classic") == "classic":
            given.setdefault("x-max-priority", most)
        return given

    def declare(self, link: Link, queue: str) -> int:
        """See that *queue* is there, bound as ``task_queues`` says; return how many messages are ready in it.

        Raises NotServed while the server has it and does not serve it, ConfigurationError when it cannot be
        made.
        """
        found = self.look(link, queue)
        options = self.declared.get(queue, {})
        bindings = _bindings(queue, options)
        if found is not None and not bindings:
            return found
        channel = link.channel()
        try:
            if found is None:
                found = int(
                    link.call(
                        channel.queue_declare, self.prefix + queue, durable=True, auto_delete=False,
                        arguments=self.arguments(queue),
                    ).message_count
                )  # fmt: skip
                self._bind_to_delays(link, queue)
            for name, kind, key in bindings:
                link.call(channel.exchange_declare, name, kind, durable=True, auto_delete=False)
                link.call(channel.queue_bind, self.prefix + queue, name, key)
            link.call(channel.close)
        except AccessRefused as error:
            raise ConfigurationError(
                f"queue {queue!r} is not in RabbitMQ at {link.address.shown}, and the user "
                f"{link.address.user!r} "
                f"may not make it: {error.reply_text}. Have it made, or give the user the right to "
                "configure it",
                setting="broker_url",
            ) from None
        except NotFound as error:  # of what is there: its node has just begun, or is gone
            raise not_served(link, self.prefix + queue, error) from None
        except ChannelError as error:
            raise ConfigurationError(
                f"queue {queue!r} cannot be made in RabbitMQ at {link.address.shown}: {error.reply_text}. "
                "Look at its options in task_queues, task_default_queue_type and task_queue_max_priority",
                setting="task_queues",
            ) from None
        return found

    def _bind_to_delays(self, link: Link, queue: str) -> None:
        """Have what waits for *queue*, which was just made, come here: it was deleted while that waited."""
        if queue in OURS:
            return
        channel = link.channel()
        try:
            link.call(channel.queue_bind, self.prefix + queue, DUE_EXCHANGE, binding(self.prefix + queue))
        except (NotFound, AccessRefused):  # nothing waits in this server, or publishers will be told
            return
        link.call(channel.close)

    def look(self, link: Link, queue: str) -> int | None:
        """How many messages are ready in *queue*; None when there is no such queue. Raises NotServed or
        another BrokerUnavailable when there is, and nobody can see into it."""
        channel = link.channel()
        try:
            count = int(link.call(channel.queue_declare, self.prefix + queue, passive=True).message_count)
        except NotFound as error:
            if DOWN in error.reply_text:
                raise not_served(link, self.prefix + queue, error) from None
            return None
        except ChannelError as error:  # another's exclusive queue, or no right to see it
            raise BrokerUnavailable(f"queue {queue!r} at {link.address.shown}: {error.reply_text}") from None
        link.call(channel.close)
        return count


def _bindings(queue: str, options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name and kind of the exchanges that *queue* is bound to, each with the routing key."""
    if options.get("bindings"):
        return [(str(name), str(kind), str(key)) for name, kind, key in options["bindings"]]
    name = str(getattr(options.get("exchange"), "name", options.get("exchange")) or "")
    if not name:
        return []
    return [(name, str(options.get("exchange_type", "direct")), str(options.get("routing_key") or queue))]
