"""The options of a call, as a type checker and an editor see them: which there are, what each may be, and a
line about each.

Comes from:  whoever calls: ``apply_async`` and its like, ``retry``, signatures.
Goes to:     type checkers, editors and the reference. Nothing of it runs: ``call.py`` has what checks calls.
Thread:      none.

What middleware declares, and stamps by their names, no type checker can know: hand them over by
``**options``, where options is a ``dict[str, Any]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypedDict


class Named(Protocol):
    """What has a name, as a Queue and an Exchange of kombu have."""

    @property
    def name(self) -> str:
        """Its name."""


Seconds = float | timedelta | str
"""A duration: seconds, a timedelta, or text as "10s" or "1h30m"."""
Links = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""One signature, or several."""


class AttemptOptions(TypedDict, total=False):
    """What an attempt of a task may be sent with, the first and the next. None is as if it were left out."""

    expires: Seconds | datetime | None
    """When it is of no use any more: seconds from now, a datetime, or ISO 8601 text."""
    queue: str | Named | None
    """The queue it goes to."""
    exchange: str | Named | None
    """With ``routing_key``, a way to the queue that ``task_queues`` declares for them."""
    routing_key: str | None
    """See ``exchange``; without one, the name of the queue."""
    priority: int | None
    """0 to 9; 9 is the most urgent."""
    headers: Mapping[str, Any] | None
    """Further headers of the message, which the task finds in ``self.request.headers``."""
    serializer: str | None
    """What its arguments are written with: json, or pickle, yaml, msgpack where they are accepted."""
    compression: str | None
    """What its message is compressed with: gzip, bzip2, xz, zstd."""
    ignore_result: bool | None
    """True stores no result, False stores it although the task has True."""
    time_limit: Seconds | None
    """Seconds after which its process is ended, and the task fails."""
    soft_time_limit: Seconds | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised inside of it."""
    shadow: str | None
    """Its name in logs."""
    link: Links | None
    """Signatures that are called with its result."""
    link_error: Links | None
    """Signatures that are called when it fails."""
    retry: bool | None
    """Whether to try again while the broker is away; None asks ``task_publish_retry``."""
    retry_policy: Mapping[str, Any] | None
    """How often, over ``task_publish_retry_policy``: max_retries, and in seconds interval_start,
    interval_step, interval_max."""
    add_to_parent: bool | None
    """False: the task that calls does not have it among its ``children``."""


class CelerysOptions(TypedDict, total=False):
    """What is taken for Celery's sake. A connection must be this app's; the others have no effect."""

    connection: Any
    """One that ``app.connection()`` has given; that of another app is refused."""
    producer: Any
    """One that ``app.producer_pool`` has given; that of another app is refused."""
    publisher: Any
    """The same as ``producer``."""
    router: Any
    """Without effect: ``task_routes`` says where calls go."""
    delivery_mode: Any
    """Without effect: every message is kept safely."""
    mandatory: Any
    """Without effect: there is a queue for every message."""
    immediate: Any
    """Without effect."""
    exchange_type: Any
    """Without effect: ``task_queues`` declares it."""
    declare: Any
    """Without effect: a queue is declared when it is needed."""


class PartOptions(TypedDict, total=False):
    """What makes a call a part of something: signatures and tasks that call see to it themselves."""

    root_id: str | None
    """The id of the first call of all that led to this one."""
    parent_id: str | None
    """The id of the call that makes this one."""
    group_id: str | None
    """The id of the group that it is in."""
    group_index: int | None
    """Its place in that group, from 0 on."""
    chord: Mapping[str, Any] | None
    """The signature of the body that waits for it."""
    chain: Sequence[Mapping[str, Any]] | None
    """The signatures that follow it, the last one first."""
    reply_to: str | None
    """The queue that its result is sent to, where results are messages."""
    replaced_task_nesting: int | None
    """How many tasks it has taken the place of."""
    stamped_headers: Sequence[str] | None
    """The names of its stamps."""
    stamps: Mapping[str, Any] | None
    """Its stamps, by their names."""


class RetryOptions(AttemptOptions, CelerysOptions, total=False):
    """The options of ``retry``, beside those that it names: the next attempt keeps what is not given."""


class CallOptions(AttemptOptions, PartOptions, CelerysOptions, total=False):
    """The options of a new call: of ``apply_async``, ``send_task``, ``apply_many`` and ``send_many``. None is
    as if it were left out."""

    countdown: float | timedelta | None
    """When to run it: seconds from now, or a timedelta."""
    eta: datetime | str | None
    """When to run it: a datetime, or ISO 8601 text; a naive one is in the setting ``timezone``."""
    argsrepr: str | None
    """What is shown in place of its positional arguments."""
    kwargsrepr: str | None
    """What is shown in place of its keyword arguments."""


class SignatureOptions(CallOptions, total=False):
    """The options that a signature takes: those of the call that it will make, and its id."""

    task_id: str | None
    """The id of the call; a new one when it is left out."""
