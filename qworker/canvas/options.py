"""The options of a call, with types and descriptions, for type checkers and editors.

Comes from:  callers of ``apply_async`` and similar methods, ``retry``, signatures.
Goes to:     type checkers, editors and the reference; ``publishing/call.py`` checks options at run time.
Thread:      none.

Options declared by middleware, and stamps by name, are unknown to a type checker: pass them as ``**options``,
where options is a ``dict[str, Any]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict


class Named(Protocol):
    """Anything with a name, such as kombu's Queue and Exchange."""

    @property
    def name(self) -> str:
        """Its name."""


Seconds = float | timedelta | str
"""A duration: seconds, a timedelta, or text as "10s" or "1h30m"."""
Links = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One signature, or several."""


class AttemptOptions(TypedDict, total=False):
    """Options for any attempt of a task, the first or a later one. None means not given."""

    expires: Seconds | datetime | None
    """When it expires: seconds from now, a datetime, or ISO 8601 text."""
    queue: str | Named | None
    """The queue it goes to."""
    exchange: str | Named | None
    """With ``routing_key``, selects the queue that ``task_queues`` declares for them."""
    routing_key: str | None
    """See ``exchange``; without one, the name of the queue."""
    priority: int | None
    """0 to 9; 9 is the most urgent."""
    headers: Mapping[str, Any] | None
    """Additional headers of the message, available to the task as ``self.request.headers``."""
    serializer: str | None
    """Serializer for its arguments: json, or pickle, yaml, msgpack where they are accepted."""
    compression: str | None
    """Compression of its message: gzip, bzip2, xz, zstd."""
    ignore_result: bool | None
    """True stores no result; False stores it although the task is declared with True."""
    time_limit: Seconds | None
    """Seconds after which its process is ended and the task fails."""
    soft_time_limit: Seconds | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised in the task."""
    shadow: str | None
    """Its name in logs."""
    link: Links | None
    """Signatures called with its result."""
    link_error: Links | None
    """Signatures called when it fails."""
    retry: bool | None
    """Whether to try again while the broker is unavailable; None: the setting ``task_publish_retry``."""
    retry_policy: Mapping[str, Any] | None
    """How often to retry, overriding ``task_publish_retry_policy``: max_retries, and in seconds
    interval_start, interval_step, interval_max."""
    add_to_parent: bool | None
    """False: it is not listed in the ``children`` of the calling task."""


class CelerysOptions(TypedDict, total=False):
    """Options accepted for compatibility with Celery. A connection must be this app's; the others have no
    effect."""

    connection: Any
    """A connection from ``app.connection()``; one of another app is refused."""
    producer: Any
    """A producer from ``app.producer_pool``; one of another app is refused."""
    publisher: Any
    """The same as ``producer``."""
    router: Any
    """No effect: ``task_routes`` decides where calls go."""
    delivery_mode: Any
    """No effect: every message is persistent."""
    mandatory: Any
    """No effect: there is a queue for every message."""
    immediate: Any
    """No effect."""
    exchange_type: Any
    """No effect: ``task_queues`` declares it."""
    declare: Any
    """No effect: a queue is declared when it is needed."""


class PartOptions(TypedDict, total=False):
    """Options that make a call part of a workflow. Signatures, and tasks that call tasks, set them."""

    root_id: str | None
    """The id of the first call that led to this one."""
    parent_id: str | None
    """The id of the call that makes this one."""
    group_id: str | None
    """The id of its group."""
    group_index: int | None
    """Its position in that group, from 0."""
    chord: Mapping[str, Any] | None
    """The signature of the body that waits for it."""
    chain: Sequence[Mapping[str, Any]] | None
    """The signatures that follow it, last one first."""
    reply_to: str | None
    """The queue for its result, where results are messages."""
    replaced_task_nesting: int | None
    """How many tasks it has replaced in turn."""
    stamped_headers: Sequence[str] | None
    """The names of its stamps."""
    stamps: Mapping[str, Any] | None
    """Its stamps, by name."""


class RetryOptions(AttemptOptions, CelerysOptions, total=False):
    """The options of ``retry``, besides its named parameters. The next attempt keeps options that are not
    given."""


class CallOptions(AttemptOptions, PartOptions, CelerysOptions, total=False):
    """The options of a new call: of ``apply_async``, ``send_task``, ``apply_many`` and ``send_many``. None
    means not given."""

    countdown: float | timedelta | None
    """When to run it: seconds from now, or a timedelta."""
    eta: datetime | str | None
    """When to run it: a datetime, or ISO 8601 text; a naive one is in the setting ``timezone``."""
    argsrepr: str | None
    """Text shown instead of its positional arguments."""
    kwargsrepr: str | None
    """Text shown instead of its keyword arguments."""


class SignatureOptions(CallOptions, total=False):
    """The options of a signature: those of the call that it will make, and its id."""

    task_id: str | None
    """The id of the call; a new one if not given."""
