"""Which of ``broker_transport_options`` a broker of ours looks at: what it does not is likely a mistake.

Comes from:  ``open_broker``, ``as_kombu/options.py`` and ``config check``, with what somebody has set.
Goes to:     a warning. It is no error: options of kombu's transport for the same server may stay when ours
             takes its place. NATS, MongoDB and the spool refuse what they do not know, and SQS hands it to
             kombu's transport: they are not here.
Thread:      any; pure, but that warn() says each thing once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache

logger = logging.getLogger(__name__)

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
"""By the scheme of the URL, without what follows a plus."""


def without_effect(url: str | None, options: Iterable[str], more: Iterable[str] = ()) -> str:
    """What to say of those *options* that the broker at *url* (None: the embedded one) does not look at; ""
    when there are none. more: options that somebody else looks at."""
    scheme = (url or "sqlite://").partition("://")[0].partition("+")[0].lower()
    known = KNOWN.get(scheme)
    ignored = sorted(set(options) - known - set(more)) if known is not None else []
    if known is None or not ignored:
        return ""
    there_are = sorted({*known, *more})
    return (
        f"broker_transport_options: {scheme}:// does not look at {', '.join(ignored)}; it has "
        f"{', '.join(there_are) if there_are else 'no options'}"
    )


def warn(url: str | None, options: Iterable[str], more: Iterable[str] = ()) -> None:
    """Log what without_effect() says, once a process: a worker opens several connections, and another after
    each loss."""
    _say(without_effect(url, options, more))


@cache
def _say(text: str) -> None:
    if text:
        logger.warning("%s", text)
