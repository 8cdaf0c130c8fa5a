"""Capabilities: what each broker supports, how, and what it lacks. One row per transport.

Comes from:  nothing; it describes the brokers here, and their servers.
Goes to:     ``Broker.lacks``; ``qworker config check``; the page of transports; the contract suite.
Thread:      any; immutable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from qworker.transports.registered import registered, row

if TYPE_CHECKING:
    pass

logger = logging.getLogger(__name__)


class Capability(StrEnum):
    """A feature that a broker may lack. An empty set means that everything is supported."""

    ETA = "eta"
    """Delayed messages wait in the server."""
    PRIORITY = "priority"
    FANOUT = "fanout"
    """All workers receive revocations, including those that start later."""
    DEAD_LETTERS = "dead_letters"
    DELIVERY_COUNT = "delivery_count"
    """Each death of a process or a whole worker is counted for its running messages."""
    WORKERS = "workers"
    """``Admin.workers()`` returns the live workers; elsewhere it is always []."""
    RESULTS = "results"
    """Results are stored with the ack of their message; elsewhere rows of settlements are not stored."""
    COUNTS = "counts"
    """``Admin.queues()`` counts delayed and leased messages, and their age; ``Admin.depths()`` the dead."""
    WHOLE_PUSH = "whole_push"
    """A push that raises has stored no message."""
    PEEK = "peek"
    """``Admin.peek()`` shows messages without taking them."""
    FAILED_TASKS = "failed_tasks"
    """``Broker.letters`` keeps the messages of tasks that have failed for good."""


ETA, PRIORITY, FANOUT, DEAD_LETTERS, DELIVERY_COUNT, WORKERS, *_more = Capability
RESULTS, COUNTS, WHOLE_PUSH, PEEK, FAILED_TASKS = _more


NOWHERE = "kept nowhere, but `task_acks_on_failure_or_timeout = False` makes dead letters of them"
"""The replacement where failed tasks are not kept."""


class Capabilities(NamedTuple):
    """accepted: what it means that ``delay()`` returned. redelivered: how a dead worker's messages come back.
    eta, priority, fanout (revoke), dead_letters, delivery_count, failed_tasks: how it works, or what happens
    instead if the broker lacks it. note: further remarks. lacks: missing or partial features. in_part: for
    partial features, the supported part in a few words; the others are missing completely."""

    name: str
    schemes: tuple[str, ...]
    accepted: str
    redelivered: str
    eta: str
    priority: str
    fanout: str
    dead_letters: str
    delivery_count: str
    note: str = ""
    failed_tasks: str = NOWHERE
    lacks: frozenset[Capability] = frozenset()
    in_part: Mapping[Capability, str] = MappingProxyType({})


_HELD = (
    "held unacknowledged by the worker that got it, up to worker_eta_task_limit; safe, but it is "
    "redelivered if that worker stops"
)
_SENT_AGAIN = "sent to the queue `qworker.dead`, then acknowledged"
_IN_A_HEADER = (
    "in a header, when a worker notices the death of a process; the death of a whole worker is not counted"
)
_PROCESSES_ONLY = {DELIVERY_COUNT: "of processes, not of whole workers"}
_NO_FANOUT = "none: only the worker that gets the order knows of it"


def _plain(
    name: str,
    schemes: tuple[str, ...],
    accepted: str,
    redelivered: str,
    in_part: Mapping[Capability, str] | None = None,
    **words: str,
) -> Capabilities:
    """Make the row of a kombu transport without a store of ours."""
    return Capabilities(
        name,
        schemes,
        accepted,
        redelivered,
        eta=_HELD,
        priority=words.pop("priority", "none: first come, first served"),
        fanout=_NO_FANOUT,
        dead_letters=_SENT_AGAIN,
        delivery_count=_IN_A_HEADER,
        lacks=frozenset(Capability) - {DEAD_LETTERS},
        in_part={ETA: "in a worker, while it lives", **_PROCESSES_ONLY, **(in_part or {})},
        **words,
    )


CAPABILITIES: tuple[Capabilities, ...] = (
    Capabilities(
        "SQLite (embedded)",
        ("sqlite",),
        accepted="committed to the file, on the disk (`embedded_synchronous`)",
        redelivered="at once: the kernel drops a dead worker's lock; a frozen worker's after "
        "worker_lease_seconds",
        eta="a column; fetched when due",
        priority="0 to 9",
        fanout="a table, read by all workers, including those that start later",
        dead_letters="a table",
        failed_tasks="a table",
        delivery_count="counted for running messages, whether a process or a whole worker died",
        note="One host; not on a network file system. A new file can be read by its owner only; chmod "
        "gives access to others.",
    ),
    Capabilities(
        "Redis, Valkey",
        ("redis", "rediss", "valkey", "valkeys", "unix", "sentinel"),
        accepted="the server has it; on its disk according to its `appendfsync` (everysec: up to 1 s may "
        "be lost in a power failure)",
        redelivered="when the worker's lease expires (worker_lease_seconds)",
        eta="a sorted set; fetched when due",
        priority="0 to 9",
        fanout="kept for all workers, including those that start later",
        dead_letters="kept in the server",
        failed_tasks="kept in the server",
        delivery_count="counted for every death",
        note="A failover loses what was not replicated. `maxmemory-policy` must be noeviction.",
    ),
    Capabilities(
        "PostgreSQL, MariaDB, MySQL",
        ("postgresql", "postgres", "mysql", "mariadb"),
        accepted="committed",
        redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
        "(worker_lease_seconds)",
        eta="a column; fetched when due",
        priority="0 to 9",
        fanout="a table, read by all workers, including those that start later",
        dead_letters="a table",
        failed_tasks="a table",
        delivery_count="counted for running messages, whether a process or a whole worker died",
        note="`app.publishing_in(session)` publishes within the caller's own transaction.",
    ),
    Capabilities(
        "MongoDB",
        ("mongodb", "mongodb+srv"),
        accepted="acknowledged by the majority of the members, from their journals (`w` and `journal` in the "
        "URL say otherwise); of a push of several, all or none",
        redelivered="at once for a worker on the same machine; elsewhere when its lease expires "
        "(worker_lease_seconds)",
        eta="a field; fetched when due",
        priority="0 to 9",
        fanout="a collection, read by all workers, including those that start later",
        dead_letters="a collection",
        failed_tasks="a collection",
        delivery_count="counted for running messages, whether a process or a whole worker died",
        note="Results are stored in the transaction of the ack on a replica set, and before it on a single "
        "server, where a worker that dies in between runs the task again. A change stream wakes idle "
        "workers on a replica set; on a single server they poll four times a second. The oldest comes "
        "first if the clocks of publishers agree.",
    ),
    Capabilities(
        "RabbitMQ",
        ("amqp", "amqps", "pyamqp"),
        accepted="confirmed by the server (persistent, and routed to a queue); of many messages sent "
        "together, some may be accepted although an error was raised",
        redelivered="at once, when the worker's connection is lost; if half open, after the heartbeat",
        eta="in separate queues in the server, until it is due (at most 0.2 s early in a worker; RabbitMQ "
        "3.10)",
        priority="0 to 9 in queues declared with `x-max-priority` (set task_queue_max_priority)",
        fanout="the stream `qworker.revoked`, read by all workers, also those started later (RabbitMQ 3.9)",
        dead_letters="the queue `qworker.dead`",
        failed_tasks="the queue `qworker.failed`; sending one again first sends it and then deletes it",
        delivery_count="in a header, for running messages when a process died, or a worker on the same "
        "machine; quorum queues also count every return",
        note="The server closes a consumer that holds a message for longer than its `consumer_timeout` (30 "
        "min): raise it for longer tasks.",
        lacks=frozenset({DELIVERY_COUNT, RESULTS, COUNTS, WHOLE_PUSH, PEEK}),
        in_part={DELIVERY_COUNT: "of processes, and of workers on the same machine"},
    ),
    Capabilities(
        "Amazon SQS",
        ("sqs", "sqs+https"),
        accepted="SQS has answered that it has the message; of many sent together, some may be accepted "
        "although an error was raised",
        redelivered="when its visibility timeout ends (`visibility_timeout`, 30 s if not set); a live "
        "worker renews that, so tasks may take longer",
        eta="in SQS, which delays a message by 15 minutes at most, so it is sent again until it is due (30 "
        "s early in a worker); FIFO queues: like the plain transports",
        priority="none: first come, first served",
        fanout=_NO_FANOUT,
        dead_letters="sent to the queue `qworker-dead`, then acknowledged",
        delivery_count=_IN_A_HEADER,
        note="At least once; in order in FIFO queues only. A purge also deletes running messages, in case "
        "their worker dies.",
        lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
        in_part=_PROCESSES_ONLY,
    ),
    Capabilities(
        "IronMQ",
        ("ironmq", "ironmq+http", "ironmq+https"),
        accepted="IronMQ has answered that it has the message; of many sent together, some may be accepted "
        "although an error was raised",
        redelivered="when its reservation ends (`visibility_timeout`, 30 s if not set); a live worker renews "
        "that, so tasks may take longer",
        eta="in IronMQ, which delays a message by 7 days at most, so it is given back until it is due (30 "
        "s early in a worker)",
        priority="none: first come, first served; what comes back comes first",
        fanout=_NO_FANOUT,
        dead_letters=_SENT_AGAIN,
        delivery_count=_IN_A_HEADER,
        note="At least once. IronMQ deletes a message after 7 days, or after the queue's "
        "`message_expiration`; a purge also deletes running messages, in case their worker dies. "
        "Counts are partial: all messages of a queue count as ready.",
        lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
        in_part=_PROCESSES_ONLY,
    ),
    Capabilities(
        "Disque",
        ("disque",),
        accepted="as many nodes as `replicate` says have it (three, or all where there are fewer); of many "
        "sent together, some may be accepted although an error was raised",
        redelivered="after `retry` seconds (30 if not set) without a sign that it is being worked on; a "
        "live worker sends that, and replaces a job when half of its `ttl` (30 days) is over",
        eta="in Disque (30 s early in a worker)",
        priority="none: first come, first served, about",
        fanout=_NO_FANOUT,
        dead_letters=_SENT_AGAIN,
        delivery_count=_IN_A_HEADER,
        note="At least once; Disque deletes a job after its `ttl`. After the restart of a node with a "
        "file, its jobs come back at their retry time.",
        lacks=frozenset(Capability) - {ETA, DEAD_LETTERS},
        in_part=_PROCESSES_ONLY,
    ),
    Capabilities(
        "Spool directory",
        ("spool",),
        accepted="written to a file of its own, on the disk (`sync` in `broker_transport_options`); of "
        "many sent together, some may be accepted although an error was raised",
        redelivered="at once: the kernel drops a dead worker's locks; a frozen worker keeps its messages",
        eta="the time of modification of the file; claimed when due",
        priority="0 to 9, a directory each",
        fanout=_NO_FANOUT,
        dead_letters="the directory `.qw-dead`",
        delivery_count="in an attribute of the file, when a worker notices the death of a process; the "
        "death of a whole worker is not counted",
        note="One host. uWSGI's spooler and ours read and write the same directory; see Spool directories.",
        lacks=frozenset({FANOUT, DELIVERY_COUNT, WORKERS, RESULTS, WHOLE_PUSH, PEEK, FAILED_TASKS}),
        in_part=_PROCESSES_ONLY,
    ),
)
PLAIN: tuple[Capabilities, ...] = (
    _plain(
        "Kafka",
        ("confluentkafka", "kafka"),
        "passed to the producer's library, which sends it in the background",
        "when the partition is assigned to another consumer",
        note='Needs `pip install "kombu[confluentkafka]"`. Acknowledging one message acknowledges all before '
        "it in its partition.",
    ),
    _plain(
        "SQLAlchemy (kombu's own)",
        ("sqla", "sqlalchemy"),
        "committed",
        "never: kombu hides a message when it is read; the messages of a killed worker are lost",
        note="Use postgresql:// or mysql:// instead.",
    ),
    _plain(
        "Files",
        ("filesystem",),
        "written to a file, without forcing it to the disk",
        "never: kombu removes the file when it is read; the messages of a killed worker are lost",
    ),
    _plain(
        "Memory",
        ("memory",),
        "in the memory of this process",
        "never: it ends with the process",
        priority="0 to 9",
        in_part={PRIORITY: "among the messages of one worker"},
        note="For tests in one process.",
    ),
)
OTHER = _plain(
    "Any other transport of kombu",
    (),
    "kombu's transport returned",
    "depends on kombu's transport; many remove a message when it is read",
    note="Try it with `kill -9` before trusting it.",
)
UNKNOWN = Capabilities(
    "A broker of another package",
    (),
    *("as its package says",) * 7,
    note="Its module has no `CAPABILITIES`; see its `Broker.lacks`.",
    failed_tasks="as its package says",
)


def capabilities_of(url: str | None) -> Capabilities:
    """Return the row for the broker at *url* (None: the embedded one). A broker of another package has the
    row of its module, or that of unknown brokers."""
    scheme = (url or "sqlite://").partition(":")[0].lower()
    ours = _row(scheme, CAPABILITIES)
    if ours is None and registered(scheme) is not None:
        ours = row(scheme) or UNKNOWN
    return ours or _row(scheme, PLAIN) or OTHER


def _row(scheme: str, rows: tuple[Capabilities, ...]) -> Capabilities | None:
    for wanted in (scheme, scheme.partition("+")[0]):
        for capabilities in rows:
            if wanted in capabilities.schemes:
                return capabilities
    return None


# -- Which of ``broker_transport_options`` a broker of ours looks at --
# Options of our brokers in ``broker_transport_options``: an unknown one is probably a mistake. Thread: any;
# pure, except that warn() logs each message once.

_REDIS = frozenset({
    "global_keyprefix", "priority_scale", "priority_steps", "visibility_timeout", "unacked_key",
    "unacked_index_key", "allow_eviction", "db", "client_name", "socket_timeout", "socket_connect_timeout",
    "socket_keepalive", "socket_keepalive_options", "master_name", "sentinel_kwargs",
})  # fmt: skip
KNOWN: dict[str, frozenset[str]] = {
    "sqlite": frozenset(),
    "postgresql": frozenset({"prepare_threshold"}),
    "postgres": frozenset({"prepare_threshold"}),
    "mysql": frozenset(),
    "mariadb": frozenset(),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "sentinel"), _REDIS),
    "ironmq": frozenset({"visibility_timeout", "wait_time_seconds"}),
    "disque": frozenset({"retry", "ttl", "replicate", "maxlen", "fastack", "wait_time_seconds"}),
}
"""By the scheme of the URL, without the part after a plus."""


def without_effect(url: str | None, options: Iterable[str], more: Iterable[str] = ()) -> str:
    """Describe those *options* that the broker at *url* (None: the embedded one) ignores; "" if there are
    none. more: options used elsewhere."""
    scheme = (url or "sqlite://").partition("://")[0].partition("+")[0].lower()
    known = KNOWN.get(scheme)
    ignored = sorted(set(options) - known - set(more)) if known is not None else []
    if known is None or not ignored:
        return ""
    there_are = sorted({*known, *more})
    return (
        f"broker_transport_options: {scheme}:// does not use {', '.join(ignored)}; it has "
        f"{', '.join(there_are) if there_are else 'no options'}"
    )


def warn(url: str | None, options: Iterable[str], more: Iterable[str] = ()) -> None:
    """Log the text of without_effect(), once per process, because a worker opens several connections."""
    _say(without_effect(url, options, more))


@cache
def _say(text: str) -> None:
    if text:
        logger.warning("%s", text)
