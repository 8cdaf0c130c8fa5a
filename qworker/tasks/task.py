"""Task: a function that a worker can call; its options and the ways to call it.

Comes from:  ``@app.task`` and ``@shared_task``; ``definition.py`` makes them.
Goes to:     ``publishing`` (delay, apply_async, apply_many, retry) or ``eager`` (apply); a worker calls
             ``run``.
Thread:      any; options are set while modules are imported and when the app is finalized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Unpack, cast, overload

from qworker.canvas.signatures import Signature
from qworker.conf import unsupported
from qworker.conf.unsupported import refuse
from qworker.context import get_current_app
from qworker.errors import BrokerUnavailable, ConfigurationError, MaxRetriesExceeded, Retry
from qworker.message.context import Context, context_of, current_context, is_entered, pop, push
from qworker.process.randomness import RANDOM
from qworker.publishing.arguments import has_plain_annotations, keywords, positional
from qworker.publishing.call import Invocation
from qworker.publishing.retry import backoff_delay
from qworker.results.result import AsyncResult
from qworker.tasks import next_attempt
from qworker.tasks.options import OPTIONS

if TYPE_CHECKING:
    from qworker import QWorker
    from qworker.backends.base import Backend
    from qworker.canvas.mapping import chunks, xmap, xstarmap
    from qworker.canvas.options import CallOptions, RetryOptions, SignatureOptions
    from qworker.publishing.publisher import Publisher
    from qworker.tasks.codecs import ModelOptions
    from qworker.tasks.eager import EagerResult
    from qworker.tasks.typed_calls import TypedCalls

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar  # typing's have no default before Python 3.13

    P = ParamSpec("P", default=...)  # a bare Task has any arguments and any value
    R = TypeVar("R", default=Any)
    _A = TypeVar("_A")
    _B = TypeVar("_B")
    _C = TypeVar("_C")
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


_HOOKS_OF_ENDS = ("on_success", "on_failure", "after_return")


class Task(Generic[P, R]):
    """A task: call it directly (``add(1, 2)``), or let a worker call it (``add.delay(1, 2)``).

    Subclass it for ``@app.task(base=…)`` to share options, hooks or helpers between tasks. Options that are
    None are taken from the settings when the app is finalized.
    """

    __module__ = "qworker"

    name: str = ""
    app: QWorker
    bind: bool = False
    is_async: bool = False
    typing: bool = True

    serializer: str | None = None
    compression: str | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    priority: int | None = None
    expires: float | datetime | None = None
    ignore_result: bool | None = None

    rate_limit: str | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    acks_late: bool | None = None
    acks_on_failure_or_timeout: bool | None = None
    keep_failed: bool | None = None
    reject_on_worker_lost: bool | None = None
    max_deliveries: int | None = None
    store_errors_even_if_ignored: bool | None = None
    track_started: bool | None = None
    throws: tuple[type[BaseException], ...] = ()
    resultrepr_maxsize: int = 1024
    trail: bool = True
    send_events: bool = True
    schedule: Any = None

    max_retries: int | None = 3
    default_retry_delay: float = 180.0
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_backoff: float | bool = False
    retry_backoff_max: float = 600.0
    retry_jitter: bool = True
    retry_kwargs: Mapping[str, Any] = MappingProxyType({})

    MaxRetriesExceededError = MaxRetriesExceeded
    """For ``except self.MaxRetriesExceededError``."""
    OperationalError = BrokerUnavailable
    """For ``except add.OperationalError``: the broker did not accept the call."""

    check_arguments: Callable[..., None] | None = None
    """Raises the TypeError that a call of the function with the same arguments would raise."""
    model_options: ModelOptions | None = None
    """Options for pydantic if ``pydantic=True``: then run() itself takes and returns plain data."""
    declared: tuple[dict[str, Any], dict[str, Any]] | None = None
    """The methods and options given to the decorator, if the task has the app's class."""
    renames: bool = False
    """Whether its class overrides shadow_name()."""
    own_call: bool = False
    """Whether its class overrides __call__(), which a worker then calls instead of run()."""
    has_on_terminated: bool = False
    """Whether on_terminated() is called in a child for each call that did not run to its end."""
    again_after_time_limit: bool = False
    """Whether a run ended by its hard time limit counts as a death of its process, so that it is delivered
    again."""
    sees_its_end: bool = False
    """Whether its class overrides hooks that are called at its end, so that its state is stored before."""
    own_apply_async: bool = False
    """Whether its class overrides apply_async(), through which every call goes."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse(f"class {cls.__qualname__}", vars(cls), unsupported.OVERRIDES)
        # Computed once per class, not for each call and run.
        cls.renames = cls.shadow_name is not Task.shadow_name
        cls.own_apply_async = cls.apply_async is not Task.apply_async
        cls.sees_its_end = any(getattr(cls, hook) is not getattr(Task, hook) for hook in _HOOKS_OF_ENDS)
        cls.own_call = getattr(cls.__call__, "__module__", None) != __name__

    @classmethod
    def on_bound(cls, app: QWorker) -> None:
        """Called when a task of this class is bound to *app* and its options are set."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        app = getattr(self, "app", None)
        if app is not None and app.finalized and name in OPTIONS:
            app.publisher.forget()  # its templates contain the options of tasks

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work. The decorators set this to the function; a class-based task overrides it."""
        raise NotImplementedError(f"task {self.name} does not define run()")

    # -- calling it --

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the task as a plain function in this process, without a message and a result.

        A class may override this and call ``super().__call__(…)`` or ``self.run(…)``. A worker then runs its
        tasks through it.
        """
        if is_entered(current_context(), self):  # a worker's run, through an overridden __call__
            return cast(R, self.run(*args, **kwargs))
        token = push(Context(task=self.name, args=args, kwargs=kwargs), self)
        try:
            return cast(R, self.run(*args, **kwargs))
        finally:
            pop(token)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """Let a worker call this task with these arguments. The message is stored when this returns. Raises
        like apply_async."""
        if self.own_apply_async:
            return self.apply_async(args, kwargs)
        publisher: Publisher = self.app.publisher
        return publisher.call(self, args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[R]:
        """Let a worker call this task, with options for this call.

        - args (iterable), kwargs (mapping): its arguments.
        - task_id (text): a new id if not given.
        - options: those of ``CallOptions``, which documents each: when it runs (countdown, eta, expires),
          where it goes (queue, exchange, routing_key, priority), how it is written (headers, serializer,
          compression), its limits (time_limit, soft_time_limit), its result (ignore_result, link,
          link_error), its name in logs (shadow), and retries while the broker is unavailable (retry,
          retry_policy); and options that a middleware declares.

        Returns the handle of the result as soon as the broker has stored the message. Raises TypeError for
        arguments that the function does not accept. Raises PublishError for an unknown option, and for an
        argument that cannot be serialised. Raises BrokerUnavailable when the broker did not confirm the
        message within ``task_publish_timeout``: then the task may or may not run, and it may be called again.
        """
        given: Mapping[str, Any] = options if task_id is None else {**options, "task_id": task_id}
        publisher: Publisher = self.app.publisher
        arguments, named = positional(self.name, args), keywords(self.name, kwargs)
        if not given:
            return publisher.call(self, arguments, named)
        invocation = Invocation(self, self.name, arguments, named, given)
        # Called by retry() through an overridden apply_async.
        if given.get("retries") is not None:
            return publisher.next_attempt(invocation, self.request)
        return publisher.call_with(invocation)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
        """delay() for asyncio: the event loop runs while the broker takes the message."""
        import asyncio  # here, because it takes 30 ms

        return await asyncio.to_thread(self.delay, *args, **kwargs)

    async def aapply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncResult[R]:
        """apply_async() for asyncio: the event loop runs while the broker takes the message.

        Cancelling it does not cancel the call.
        """
        import asyncio

        return await asyncio.to_thread(self.apply_async, args, kwargs, task_id, **options)

    def apply_many(self, calls: Iterable[Any], **options: Unpack[CallOptions]) -> list[AsyncResult[R]]:
        """Call this task many times in one round trip to the broker: all calls are stored, or none.

        - calls: for each, a tuple or list of positional arguments, a mapping of keyword arguments, or a
          signature.
        - options: as for apply_async, the same for all.

        Returns the results in the order of *calls*. Raises like apply_async.
        """
        publisher: Publisher = self.app.publisher
        return publisher.call_many(self, calls, options)

    async def aapply_many(self, calls: Iterable[Any], **options: Unpack[CallOptions]) -> list[AsyncResult[R]]:
        """apply_many() for asyncio: the event loop runs while the broker takes the messages."""
        import asyncio

        return await asyncio.to_thread(self.apply_many, calls, **options)

    def apply(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        retries: int = 0,
        throw: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> EagerResult[R]:
        """Run the task in this process like a worker, with request, hooks, signals and retries.

        - args, kwargs: its arguments.
        - task_id (text): None for a new one.
        - retries (number): number of earlier retries.
        - throw (bool): raise the task's exception; None: the setting ``task_eager_propagates``.
        - options: as for apply_async.

        Returns an EagerResult. Raises the task's exception only with *throw*.
        """
        from qworker.tasks.eager import apply_eagerly

        return apply_eagerly(
            self,
            positional(self.name, args),
            keywords(self.name, kwargs),
            task_id=task_id,
            retries=retries,
            throw=throw,
            options=options,
        )

    def signature(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **more: Unpack[SignatureOptions],
    ) -> Signature:
        """Return the signature of a call. *more* overrides *options*."""
        return Signature(self.name, args, kwargs, options, immutable=immutable, app=self.app, **more)

    subtask = signature

    # For type checkers: all arguments, or some. A single argument may be for the first or second parameter,
    # because a parent's result may be put before it.
    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature: ...
    @overload
    def s(self: Callable[Concatenate[_A, ...], Any], arg: _A, /, **kwargs: Any) -> Signature: ...
    @overload
    def s(self: Callable[Concatenate[_A, _B, ...], Any], arg: _A | _B, /, **kwargs: Any) -> Signature: ...
    @overload
    def s(self: Callable[Concatenate[_A, _B, _C, ...], Any], *args: Any, **kwargs: Any) -> Signature: ...
    @overload
    def s(self, **kwargs: Any) -> Signature: ...
    def s(self: Any, *args: Any, **kwargs: Any) -> Signature:  # type: ignore[misc]
        """Return the signature with these arguments; as a callback, it gets its parent's result first."""
        return self.signature(args, kwargs)  # type: ignore[no-any-return]

    def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature:
        """Return the immutable signature with exactly these arguments."""
        return self.signature(args, kwargs, immutable=True)

    def map(self, it: Iterable[Any]) -> xmap:
        """Return the signature of one call that runs ``task(item)`` for each item of *it*."""
        from qworker.canvas.mapping import xmap

        return xmap(self.s(), it, app=self.app)

    def starmap(self, it: Iterable[Any]) -> xstarmap:
        """Return the signature of one call that runs ``task(*item)`` for each item of *it*."""
        from qworker.canvas.mapping import xstarmap

        return xstarmap(self.s(), it, app=self.app)

    def chunks(self, it: Iterable[Any], n: int) -> chunks:
        """Return the signature of a group of calls like starmap(), with *n* items each."""
        from qworker.canvas.mapping import chunks

        return chunks(self.s(), it, n, app=self.app)

    # -- conversion of values --

    @cached_property
    def typed_calls(self) -> TypedCalls | None:
        """The conversions by its annotations; None if there are none. Computed at the first call or run, when
        the names in the annotations are defined."""
        if has_plain_annotations(self.run):
            return None
        from qworker.tasks.typed_calls import typed_calls

        return typed_calls(self)

    @cached_property
    def dumps_arguments(self) -> bool:
        """Whether dump_arguments() may change arguments."""
        return self.typed_calls is not None

    def dump_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any], partial: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call in the form that is sent.

        - options: of the call. With pickle, which supports every type, values are unchanged.
        - partial: other arguments may be put before *args* later.

        Raises EncodeError for a value that would not arrive unchanged.
        """
        typed = self.typed_calls
        if typed is None or (options.get("serializer") or self.serializer) == "pickle":
            return args, kwargs
        return typed.dump(args, kwargs, partial)

    def taking_plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of *function* (run() or the task) for workers, which takes arguments from a
        message and returns a value that can be stored."""
        typed = self.typed_calls
        if typed is None or self.model_options is not None:
            return function
        return typed.around(function, self.is_async, as_is=self.app.conf.result_serializer == "pickle")

    def load_result(self, value: Any) -> R:
        """Convert *value*, returned by ``get()``, to the annotated return type.

        Raises InvalidValue if it does not match. A value of a type that JSON supports is unchanged.
        """
        typed = self.typed_calls
        return cast(R, value if typed is None else typed.load_result(value))

    # -- inside a running task --

    @property
    def request(self) -> Context:
        """The request of the running task; an empty one (called_directly is True) outside of it."""
        return context_of(self) or Context(task=self.name)

    def retry(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | timedelta | None = None,
        max_retries: int | None = None,
        **options: Unpack[RetryOptions],
    ) -> Retry:
        """Send the next attempt of the running task, with the same id, and raise Retry to end this one.

        - args, kwargs: of the next attempt; None: those of this one, except parameters given in the other.
        - exc: the reason. After *max_retries* retries it is raised instead.
        - throw (bool): False returns the Retry instead of raising it.
        - eta (datetime) or countdown (seconds or timedelta): when; by default after default_retry_delay.
        - max_retries (number): overrides that of the task.
        - options: those of ``RetryOptions``; by default those of this attempt.

        Raises MaxRetriesExceeded after the last retry if there is no *exc*. If the next attempt cannot be
        sent now, raises Reject, which puts the message of this one back, or BrokerUnavailable if it is acked
        already. If the task was called directly, raises the exception itself.
        """
        return next_attempt.retry(self, args, kwargs, exc, throw, eta, countdown, max_retries, options)

    def replace(self, sig: Any) -> Any:
        """Replace the running task with *sig*, and raise Replaced (a subclass of Ignore) to end it.

        - sig: a signature or a workflow; the value of a group is the list.

        The replacement's value becomes the result of this task. It takes over the id, the callbacks and
        errbacks, the rest of the chain, and the place in a chord. Write ``return self.replace(sig)``.

        Raises ConfigurationError for a signature that is already part of a chord, PublishError like
        apply_async, and Reject if it cannot be sent now, like retry().
        """
        from qworker.tasks import replacement

        return self.on_replace(replacement.replacement(self, sig))

    def on_replace(self, sig: Any) -> Any:
        """Called by replace() with the signature to send. Overrides return ``super().on_replace(sig)``."""
        from qworker.tasks import replacement

        return replacement.replace(self, sig)

    def add_to_chord(self, sig: Any, lazy: bool = False) -> Any:
        """Add *sig*, a signature or workflow, to the chord of the running task. The body also waits for it,
        and gets its value after those of the existing members.

        - lazy (bool): do not send it; the body waits until the caller does.

        Returns its result, or the signature if *lazy*. Raises NotInChord if the task is not in a chord,
        PublishError and BrokerUnavailable like apply_async, and NotSupported if the result store does not
        support chords.
        """
        from qworker.tasks import replacement

        return replacement.add_to_chord(self, sig, lazy)

    def autoretry_countdown(self, context: Context) -> float:
        """Return the seconds to wait before the automatic retry of *context*.

        It depends on retry_backoff. Without that, it is the countdown in retry_kwargs, else
        default_retry_delay.
        """
        if not self.retry_backoff:
            countdown = self.retry_kwargs.get("countdown", self.default_retry_delay)
            return countdown.total_seconds() if isinstance(countdown, timedelta) else float(countdown)
        factor = float(self.retry_backoff)  # True is 1 second
        return backoff_delay(
            factor, context.retries, self.retry_backoff_max, self.retry_jitter, RANDOM.random
        )

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **extra: Any
    ) -> bool:
        """Store a custom state, such as PROGRESS.

        - task_id (text): None for the running task.
        - state (text): its name.
        - meta: its info; any serializable value.

        Returns False if a final state is already stored.
        """
        request = self.request
        identity = task_id or request.id
        if identity is None:
            raise ConfigurationError(f"{self.name}.update_state() needs a task_id when no task is running")
        backend = self.backend
        context = request if identity == request.id else None
        return backend.store(
            identity, backend.meta(identity, state or "PENDING", meta, None, context, **extra)
        )

    # -- results --

    @property
    def backend(self) -> Backend:
        """The result store."""
        return self.app.backend

    def AsyncResult(self, task_id: str) -> AsyncResult[R]:
        """Return the result handle of an earlier call."""
        result: AsyncResult[R] = self.app.AsyncResult(task_id)
        return result

    # -- hooks for a custom base, called in the worker --

    def before_start(self, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before each attempt of the task. An exception here is treated like one of the task."""

    def on_success(self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called after the task returned *retval*. An exception here, or in a hook below, is only logged."""

    def on_retry(
        self, exc: BaseException, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], einfo: Any
    ) -> None:
        """Called before a retry because of *exc*; str(einfo) is the traceback."""

    def on_failure(
        self, exc: BaseException, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], einfo: Any
    ) -> None:
        """Called when the task failed with *exc*; str(einfo) is the traceback."""

    def on_terminated(self, context: Context, state: str, error: dict[str, Any]) -> None:
        """Called in a child for a call that was killed or revoked, or has expired, if has_on_terminated is
        set. error: as stored. It may ``raise self.retry(…, throw=False)`` to continue the task."""

    def after_return(
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: Any,
    ) -> None:
        """Called last, after the task succeeded or failed, but not before a retry. retval: the value or the
        exception."""

    def shadow_name(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> str | None:
        """Return another name for this call in logs; None for the task's name."""
        return None

    # -- identity --

    def origin(self) -> tuple[str, str]:
        """Return the module and name of the function, to distinguish tasks of the same name."""
        return self.__module__, self.__dict__.get("__qualname__") or type(self).__qualname__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise unsupported.unsupported("task", name, unsupported.TASK)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __reduce__(self) -> Any:
        return _task_named, (self.name,)


class AsyncTask(Task[P, R]):
    """A task whose function is ``async def``. Calling it returns a coroutine; delay() and the other methods
    work as usual."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]
        """Run the task in this event loop."""
        if is_entered(current_context(), self):
            return cast(R, await self.run(*args, **kwargs))
        token = push(Context(task=self.name, args=args, kwargs=kwargs), self)
        try:
            return cast(R, await self.run(*args, **kwargs))
        finally:
            pop(token)


def _task_named(name: str) -> Task[..., Any]:
    return cast(Task[..., Any], get_current_app().tasks[name])
