"""Which keys and channels of a Redis database are the broker's.

Comes from:  ``broker_transport_options``.
Goes to:     every room of the Redis broker.
Thread:      any; never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from qworker.errors import ConfigurationError
from qworker.transports.delivery_fields import instant
from qworker.transports.redis.connection import Link, Script
from qworker.transports.redis.envelope import SEPARATOR, STEPS, Scale
from qworker.transports.redis.join_rows import JoinKeys, join_keys
from qworker.transports.redis.url import SOCKET_TIMEOUT

VISIBILITY_TIMEOUT = 3600.0
USUAL = b"0"
"""What is published of a message without a priority, in the usual list of a queue; of anything else it is
another word."""


class Layout(NamedTuple):
    """prefix: of all keys (kombu's ``global_keyprefix``). keys: unacked, unacked_index and the owners, in
    full. channels: what those begin with on which is said that a queue got something. join_keys: the
    keys of results and joins that are kept here. visibility_timeout: seconds after which what a stock
    consumer holds is restored."""

    prefix: str
    keys: tuple[str, str, str]
    channels: str
    scale: Scale
    join_keys: JoinKeys
    visibility_timeout: float
    allow_eviction: bool

    def key(self, name: str) -> str:
        return f"{self.prefix}qworker.{name}"

    def list_of(self, queue: str, step: int) -> str:
        """The key of kombu's list for *queue* and a step of its priorities."""
        return f"{self.prefix}{queue}{SEPARATOR}{step}" if step else f"{self.prefix}{queue}"

    @property
    def usual(self) -> int:
        """The step of messages without a priority."""
        return self.scale.step(0)

    def run(
        self, link: Link, script: Script, now: float, *arguments: Any, timeout: float = SOCKET_TIMEOUT
    ) -> Any:
        """Run *script* with what all scripts are given; *now*: epoch seconds on the caller's wall clock."""
        return script.call(link, self.keys, (self.prefix, self.channels, repr(now), *arguments), timeout)

    def packed(self, script: Script, now: float, *arguments: Any) -> bytes:
        """The command that runs *script* with these."""
        return script.packed(self.keys, (self.prefix, self.channels, repr(now), *arguments))


def layout(
    db: int, options: Mapping[str, Any], results: Mapping[str, Any], results_expires: float | None = None
) -> Layout:
    """The layout that the options of the broker and of the result store ask for, in database number *db*."""
    prefix = str(options.get("global_keyprefix") or "")
    scale = options.get("priority_scale", "qworker")
    if scale not in ("qworker", "celery"):
        raise ConfigurationError(
            f'priority_scale is "qworker" (9 is most urgent) or "celery" (0 is), not {scale!r}',
            setting="broker_transport_options",
        )
    try:
        steps = tuple(sorted(int(step) for step in options.get("priority_steps") or STEPS))
        visibility = float(options.get("visibility_timeout") or VISIBILITY_TIMEOUT)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"priority_steps is a list of whole numbers, visibility_timeout a number of seconds: {error}",
            setting="broker_transport_options",
        ) from None
    unacked = options.get("unacked_key") or "unacked"
    index = options.get("unacked_index_key") or "unacked_index"
    return Layout(
        prefix,
        (f"{prefix}{unacked}", f"{prefix}{index}", f"{prefix}qworker.owners"),
        f"{prefix}qworker.bell.{db}.",
        Scale(steps, scale == "qworker"),
        join_keys(results, results_expires),
        visibility,
        bool(options.get("allow_eviction")),
    )


def whole(text: bytes | None) -> int:
    """The number in a key that counts; 0 for what a stranger has written there."""
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0


def moment(text: bytes) -> float | None:
    """Epoch seconds that are written so; None for none, and for what a stranger wrote there."""
    try:
        return instant(float(text))
    except ValueError:
        return None
