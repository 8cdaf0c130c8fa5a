"""Capabilities: what a broker can do, how it does it, and what it cannot do, in words. The row of each is
beside it: ``CAPABILITIES`` of the module that opens it.

Comes from:  those modules.
Goes to:     ``Broker.lacks``; ``qworker config check``; the page of transports; the contract suite.
Thread:      any; immutable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from qworker.transports.schemes import OURS, PLAIN, module_of

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
    """``Broker.presence`` knows the live workers."""
    RESULTS = "results"
    """Results are stored with the ack of their message; elsewhere rows of settlements are not stored."""
    COUNTS = "counts"
    """``Admin.queues()`` counts delayed and leased messages, and their age; ``Admin.depths()`` the dead."""
    WHOLE_PUSH = "whole_push"
    """A push that raises has stored no message."""
    PEEK = "peek"
    """``Broker.peeking`` shows messages where they lie."""
    FAILED_TASKS = "failed_tasks"
    """``Broker.letters`` keeps the messages of tasks that have failed for good."""


ETA, PRIORITY, FANOUT, DEAD_LETTERS, DELIVERY_COUNT, WORKERS, *_more = Capability
RESULTS, COUNTS, WHOLE_PUSH, PEEK, FAILED_TASKS = _more


NOWHERE = "not kept; with `task_acks_on_failure_or_timeout = False` they become dead letters"
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


SENT_AGAIN = "sent to the queue `qworker.dead`, then acknowledged"
IN_A_HEADER = (
    "in a header, when a worker notices the death of a process; the death of a whole worker is not counted"
)
PROCESSES_ONLY = {DELIVERY_COUNT: "of processes, not of whole workers"}
NO_FANOUT = "none: `revoke()` raises `NotSupported`"


UNKNOWN = Capabilities(
    "A broker of another package",
    (),
    *("see its package",) * 7,
    note="Its module has no `CAPABILITIES`; see its `Broker.lacks`.",
    failed_tasks="see its package",
)


def capabilities_of(url: str | None) -> Capabilities:
    """Return the row for the broker at *url* (None: the embedded one). For a broker of another package, it is
    the row of its module, or UNKNOWN; for one of kombu's transports, see plain_capabilities()."""
    scheme = (url or "sqlite://").partition(":")[0].lower()
    module = module_of(scheme)
    if module is None:
        return plain_capabilities(scheme)
    found: Capabilities | None = getattr(import_module(module), "CAPABILITIES", None)
    return found or UNKNOWN


def plain_capabilities(scheme: str) -> Capabilities:
    """Return the row for kombu's transport of *scheme*; OTHER if there is none."""
    module = import_module(OURS[PLAIN])
    for row in module.PLAIN:
        if {scheme, scheme.partition("+")[0]} & {*row.schemes}:
            found: Capabilities = row
            return found
    other: Capabilities = module.OTHER
    return other


# -- Options of our brokers in ``broker_transport_options`` --
# An unknown one is probably a mistake. Thread: any; pure, except that warn() logs each message once.

_REDIS = frozenset({
    "global_keyprefix", "priority_scale", "priority_steps", "visibility_timeout", "unacked_key",
    "unacked_index_key", "allow_eviction", "db", "client_name", "socket_timeout", "socket_connect_timeout",
    "socket_keepalive", "socket_keepalive_options", "master_name", "sentinel_kwargs",
})  # fmt: skip
KNOWN: dict[str, frozenset[str]] = {
    "sqlite": frozenset(),
    "postgresql": frozenset({"prepare_threshold", "pooler"}),
    "postgres": frozenset({"prepare_threshold", "pooler"}),
    "mysql": frozenset(),
    "mariadb": frozenset(),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "sentinel"), _REDIS),
    "ironmq": frozenset({"visibility_timeout", "wait_time_seconds"}),
    "disque": frozenset({"retry", "ttl", "replicate", "maxlen", "fastack", "wait_time_seconds"}),
}
"""The options that a broker uses, by URL scheme, without the part after a plus. Others are not checked."""


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
    _warn_once(without_effect(url, options, more))


@cache
def _warn_once(text: str) -> None:
    if text:
        logger.warning("%s", text)
