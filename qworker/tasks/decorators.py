"""What ``@app.task(…)`` and ``@shared_task(…)`` are to a type checker and an editor: makers of tasks that
keep the signature; which options they take, and a line about each.

Comes from:  ``app.py`` and ``shared.py``, as the types of what they take and return.
Goes to:     type checkers, editors and the reference. Nothing of it runs: ``options.py`` reads options.
Thread:      none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, overload

from qworker.publishing.options import Seconds
from qworker.tasks.task import AsyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")

Errors = type[BaseException] | Collection[type[BaseException]]
"""One class of exceptions, or several."""


class Decorator(Protocol):
    """Makes a task of a function: what ``@app.task(…)`` is, to a type checker."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class BoundDecorator(Protocol):
    """The same with ``bind=True``: the function's first parameter is the task, and no argument of the
    call."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> Task[P, R]: ...


class TaskOptions(TypedDict, total=False):
    """The options of a task, besides ``bind`` and ``base``. None, where an option may be that, asks the
    setting behind it.

    What a middleware declares no type checker can know: hand it over by ``**options``, where options is a
    ``dict[str, Any]``. With ``base=`` any name will do to a type checker, since it may be one of that class.
    """

    name: str | None
    """What messages call it."""
    pydantic: bool
    """As in Celery, a direct call takes and returns plain data for pydantic's models, too. Models need none
    of it: annotations tell."""
    pydantic_strict: bool
    """With ``pydantic=True``: pydantic converts nothing."""
    pydantic_context: Mapping[str, Any] | None
    """With ``pydantic=True``: what validators find as their context, besides the app and the task's name."""
    pydantic_dump_kwargs: Mapping[str, Any] | None
    """With ``pydantic=True``: arguments of pydantic's ``model_dump``, by which a result becomes data."""

    serializer: str | None
    """What its arguments are written with: json, or pickle, yaml, msgpack where they are accepted."""
    compression: str | None
    """What its messages are compressed with: gzip, bzip2, xz, zstd."""
    queue: str | None
    """The queue its calls go to."""
    exchange: str | None
    """With ``routing_key``, a way to the queue that ``task_queues`` declares for them."""
    routing_key: str | None
    """See ``exchange``; without one, the name of the queue."""
    priority: int | None
    """0 to 9; 9 is the most urgent."""
    expires: Seconds | datetime | None
    """When a call is of no use any more: seconds after it was made, or a moment."""
    rate_limit: str | float | None
    """How many may start in each worker: ``"10/s"``, ``"100/m"``, ``"5/h"``, or a number a second."""
    time_limit: Seconds | None
    """Seconds after which its process is ended, and the task fails."""
    soft_time_limit: Seconds | None
    """Seconds after which ``SoftTimeLimitExceeded`` is raised inside of it."""
    acks_late: bool | None
    """False deletes the message before the task starts: it is rather lost than run twice."""
    acks_on_failure_or_timeout: bool | None
    """False makes a dead letter of a task that failed or took too long."""
    reject_on_worker_lost: bool | None
    """True delivers it again when its process died, False fails it."""
    max_deliveries: int | None
    """How often its process may die before its message becomes a dead letter."""
    ignore_result: bool | None
    """True stores no result."""
    keep_failed: bool | None
    """False forgets a call that has failed; else ``qworker failed`` shows it."""
    store_errors_even_if_ignored: bool | None
    """With ``ignore_result``, store failures all the same."""
    track_started: bool | None
    """True stores STARTED, with process and host, when it starts."""
    throws: Errors
    """Exceptions that are part of its work: logged in one line."""
    autoretry_for: Errors
    """Exceptions after which it is tried again."""
    dont_autoretry_for: Errors
    """Exceptions taken out of ``autoretry_for``."""
    max_retries: int | None
    """How many retries it has; None for no end."""
    default_retry_delay: Seconds
    """Seconds before a retry that does not say when."""
    retry_backoff: bool | Seconds
    """True, or the seconds before the first automatic retry; doubled each time."""
    retry_backoff_max: Seconds
    """Seconds that the doubling stops at."""
    retry_jitter: bool
    """Wait a random part of that, so that a crowd does not come back at once."""
    retry_kwargs: Mapping[str, Any]
    """More arguments for ``retry()`` when a retry is automatic, as ``max_retries``."""
    resultrepr_maxsize: int
    """Characters of its result that are shown in the log."""
    trail: bool
    """Remember the calls that it makes as its ``children``."""
    send_events: bool
    """Taken for Celery's sake; there are no events yet."""
    typing: bool
    """False leaves arguments unchecked until it runs, and plain whatever its annotations say."""
    schedule: Any
    """When the scheduler calls it, without arguments: a schedule of ``qworker.beat``, seconds, or text as
    ``"0 4 * * *"``."""

    before_start: Callable[..., Any]
    """Called before it runs, with the task, its id, args and kwargs."""
    on_success: Callable[..., Any]
    """Called after it returned, with the task, the value, its id, args and kwargs."""
    on_retry: Callable[..., Any]
    """Called when it is to run again, with the task, the exception, its id, args, kwargs and einfo."""
    on_failure: Callable[..., Any]
    """Called when it failed, with the task, the exception, its id, args, kwargs and einfo."""
    after_return: Callable[..., Any]
    """Called last, with the task, the state, the value or exception, its id, args, kwargs and einfo."""
    shadow_name: Callable[..., str | None]
    """Called with the task, args, kwargs and options of a call; returns another name for logs, or None."""
