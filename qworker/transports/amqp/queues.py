"""The queues in RabbitMQ: which exist, and their arguments.

Comes from:  the settings ``task_queues``, ``task_default_queue_type``, ``task_queue_max_priority``.
Goes to:     ``publisher.py`` and ``consumer.py``, over their links.
Thread:      any; immutable.

An existing queue is used as it is, with any arguments; so a Celery worker and ours may share it, whichever
came first.
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
"""Internal queues, which contain no tasks to run."""
WORKERS_SECONDS = 600
"""Minimum seconds for which the stream of workers keeps messages."""
DOWN = "is down or inaccessible"
"""RabbitMQ's words for a queue that exists but is not served: its node has just started, or has left the
cluster. It reports that as not found, too."""
LONGEST_TIME = 3650 * 86400 * 1000
"""Milliseconds: RabbitMQ refuses queues with a longer message lifetime."""


class NotServed(BrokerUnavailable):
    """The server knows this queue but does not serve it: its node has just started, or is gone. This may be
    temporary."""


def not_served(link: Link, queue: str, error: NotFound) -> NotServed:
    """Return the error for *queue*, given its name in the server."""
    return NotServed(
        f"RabbitMQ at {link.address.shown} has the queue {queue!r} but does not serve it "
        f"({error.reply_text}): if this persists once all its nodes are up, its data is lost: use another "
        "virtual host"
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
    """Prefix of all queues in the server: separates several users of a virtual host."""

    def known(self) -> list[str]:
        return sorted({self.default, *self.declared})

    def arguments(self, queue: str) -> dict[str, Any]:
        """Return the arguments of *queue*."""
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
        """Create *queue* if necessary, bound as in ``task_queues``; return how many messages are ready in it.

        Raises NotServed while the server does not serve it, ConfigurationError when it cannot be created.
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
                f"{link.address.user!r} may not create it: {error.reply_text}. Have it created, or give the "
                "user the right to configure it",
                setting="broker_url",
            ) from None
        except NotFound as error:  # of an existing queue: its node has just started, or is gone
            raise not_served(link, self.prefix + queue, error) from None
        except ChannelError as error:
            raise ConfigurationError(
                f"queue {queue!r} cannot be created in RabbitMQ at {link.address.shown}: "
                f"{error.reply_text}. Check its options in task_queues, task_default_queue_type and "
                "task_queue_max_priority",
                setting="task_queues",
            ) from None
        return found

    def _bind_to_delays(self, link: Link, queue: str) -> None:
        """Bind the new *queue* to the delay queues: it may have been deleted while messages for it waited."""
        if queue in OURS:
            return
        channel = link.channel()
        try:
            link.call(channel.queue_bind, self.prefix + queue, DUE_EXCHANGE, binding(self.prefix + queue))
        except (NotFound, AccessRefused):  # nothing waits in this server, or publishers will get an error
            return
        link.call(channel.close)

    def look(self, link: Link, queue: str) -> int | None:
        """Return how many messages are ready in *queue*; None when it does not exist. Raises NotServed or
        another BrokerUnavailable when it exists, but cannot be examined."""
        channel = link.channel()
        try:
            count = int(link.call(channel.queue_declare, self.prefix + queue, passive=True).message_count)
        except NotFound as error:
            if DOWN in error.reply_text:
                raise not_served(link, self.prefix + queue, error) from None
            return None
        except ChannelError as error:  # another's exclusive queue, or no permission to see it
            raise BrokerUnavailable(f"queue {queue!r} at {link.address.shown}: {error.reply_text}") from None
        link.call(channel.close)
        return count


def _bindings(queue: str, options: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name and kind of the exchanges of *queue*, each with the routing key."""
    if options.get("bindings"):
        return [(str(name), str(kind), str(key)) for name, kind, key in options["bindings"]]
    name = str(getattr(options.get("exchange"), "name", options.get("exchange")) or "")
    if not name:
        return []
    return [(name, str(options.get("exchange_type", "direct")), str(options.get("routing_key") or queue))]
