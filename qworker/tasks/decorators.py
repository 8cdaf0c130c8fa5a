"""The types of ``@app.task(…)`` and ``@shared_task(…)``: they keep the function's signature, and document
each option.

Comes from:  ``app.py`` and ``shared.py``, as types of parameters and return values.
Goes to:     type checkers, editors and the reference. Nothing here is executed; ``options.py`` reads options.
Thread:      none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

from qworker.canvas.options import Seconds
from qworker.tasks.task import AsyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")

Errors = type[BaseException] | Collection[type[BaseException]]
"""One exception class, or several."""


class Decorator(Protocol):
    """The type of ``@app.task(…)``: makes a task of a function."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BoundDecorator(Protocol):
    """The type of ``@app.task(bind=True)``: the function's first parameter is the task, not an argument."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Task[P, R]: ...


class TaskOptions(TypedDict, total=False):
    """The options of a task, besides ``bind`` and ``base``. None, where allowed, means the setting of the
    option.

    A type checker does not know options declared by middleware: pass them as ``**options``, a
    ``dict[str, Any]``. With ``base=`` it accepts any name, which may be an attribute of that class.
    """

    name: str | None
    """Its name in messages."""
    pydantic: bool
    """As in Celery, also let direct calls take and return plain data for pydantic models. Tasks with models
    do not need it: annotations suffice."""
    pydantic_strict: bool
    """With ``pydantic=True``: strict validation, without conversions."""
    pydantic_context: Mapping[str, Any] | None
    """With ``pydantic=True``: context for validators, besides the app and the task's name."""
    pydantic_dump_kwargs: Mapping[str, Any] | None
    """With ``pydantic=True``: arguments of pydantic's ``model_dump`` for the result."""

    serializer: str | None
    """Serializer for its arguments: json, or pickle, yaml, msgpack where they are accepted."""
    compression: str | None
    """Compression of its messages: gzip, bzip2, xz, zstd."""
    queue: str | None
    """The queue its calls go to."""
    exchange: str | None
    """With ``routing_key``, selects the queue that ``task_queues`` declares for them."""
    routing_key: str | None
    """See ``exchange``; without one, the name of the queue."""
    priority: int | None
    """0 to 9; 9 is the most urgent."""
    expires: Seconds | datetime | None
    """When a call expires: seconds after it was made, or an instant."""
    rate_limit: str | float | None
    """How many may start in each worker: ``"10/s"``, ``"100/m"``, ``"5/h"``, or a number per second."""
    time_limit: Seconds | None
    """Seconds after which its process is ended and the task fails."""
    soft_time_limit: Seconds | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised in the task."""
    acks_late: bool | None
    """False deletes the message before the task starts: it may be lost, but never runs twice."""
    acks_on_failure_or_timeout: bool | None
    """False dead-letters a task that failed or timed out."""
    reject_on_worker_lost: bool | None
    """True redelivers a task whose process died; False fails it."""
    max_deliveries: int | None
    """How often its process may die before its message becomes a dead letter."""
    ignore_result: bool | None
    """True does not store its result."""
    keep_failed: bool | None
    """False discards a failed call; otherwise ``qworker failed`` shows it."""
    store_errors_even_if_ignored: bool | None
    """With ``ignore_result``, still store failures."""
    track_started: bool | None
    """True stores STARTED, with process and host, when it starts."""
    throws: Errors
    """Exceptions that are expected: logged in one line."""
    autoretry_for: Errors
    """Exceptions after which it is retried automatically."""
    dont_autoretry_for: Errors
    """Exceptions excluded from ``autoretry_for``."""
    max_retries: int | None
    """Maximum number of retries; None for no limit."""
    default_retry_delay: Seconds
    """Seconds before a retry, by default."""
    retry_backoff: bool | Seconds
    """True, or the seconds before the first automatic retry; doubled each time."""
    retry_backoff_max: Seconds
    """Maximum seconds between automatic retries."""
    retry_jitter: bool
    """Wait a random part of that time, so that retries are spread out."""
    retry_kwargs: Mapping[str, Any]
    """Additional arguments of ``retry()`` for automatic retries, such as ``max_retries``."""
    resultrepr_maxsize: int
    """Maximum characters of its result in the log."""
    trail: bool
    """Record the calls that it makes as its ``children``."""
    send_events: bool
    """Accepted for compatibility with Celery; there are no events yet."""
    typing: bool
    """False skips the check of arguments by the caller, and the conversion by annotations."""
    schedule: Any
    """When the scheduler calls it, without arguments: a schedule of ``qworker.beat``, seconds, or text such
    as ``"0 4 * * *"``."""

    before_start: Callable[..., Any]
    """Called before it runs, with the task, its id, args and kwargs."""
    on_success: Callable[..., Any]
    """Called after it returned, with the task, the value, its id, args and kwargs."""
    on_retry: Callable[..., Any]
    """Called before a retry, with the task, the exception, its id, args, kwargs and einfo."""
    on_failure: Callable[..., Any]
    """Called when it failed, with the task, the exception, its id, args, kwargs and einfo."""
    after_return: Callable[..., Any]
    """Called last, with the task, the state, the value or exception, its id, args, kwargs and einfo."""
    shadow_name: Callable[..., str | None]
    """Called with the task, args, kwargs and options of a call; returns another name for logs, or None."""
