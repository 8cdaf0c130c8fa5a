"""Execution: one run of a task, as a sequence of steps that ends in an Outcome.

Comes from:  a pool child, a thread of the threads pool, or an eager call.
Goes to:     back as an Outcome, which contains the row for the worker to store.
Thread:      the one that runs the task.

Whatever the body raises becomes an Outcome: SystemExit and KeyboardInterrupt are failures of the task, not of
the process.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from qworker import signals, states
from qworker.canvas.membership import is_ignored
from qworker.contracts import App, Task
from qworker.errors import (
    BackendError,
    ChordError,
    Ignore,
    InvalidValue,
    MessageError,
    QWorkerError,
    Reject,
    Replaced,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
)
from qworker.interrupts import reraise_interrupt, within
from qworker.message.context import (
    Context,
    calls_within,
    enter_by,
    has_read_chain,
    message_headers,
    pop,
    push,
)
from qworker.message.exceptions import exception_to_dict
from qworker.message.marks import FAILED, kept_in
from qworker.middleware import compose
from qworker.publishing.transactions import holding_back
from qworker.safe_repr import safe_repr, storable
from qworker.tasks import copies, followup
from qworker.tasks.outcome import (
    EXPECTED,
    FAILURE,
    IGNORED,
    INTERRUPTED,
    INVALID,
    REJECTED,
    REPLACED,
    REQUEUED,
    RETRY,
    SUCCESS,
    TERMINATED,
    Fields,
    Followed,
    Outcome,
)
from qworker.tasks.unsent import can_go_back, is_away, reason
from qworker.transports.lease import Envelope, ResultRow

if TYPE_CHECKING:
    from qworker.message.context import Context
    from qworker.message.protocol import Body

logger = logging.getLogger(__name__)

MAX_TRACEBACK = 64 * 1024
"""Maximum characters of a stored traceback."""
PATIENCE_SECONDS = 2.0
"""Maximum seconds for which an ended task waits for the result store, so that hooks and signal receivers can
read its state. The first time, a process connects to the store meanwhile."""
_HANGING: WeakKeyDictionary[Any, Event] = WeakKeyDictionary()
"""Result stores that did not answer in that time, each with an event that is set when it does. Used by any
thread, because each access is one call."""


class Interrupted(SoftTimeLimitExceeded):
    """The worker stops and interrupts the task. A task may catch it and end normally; otherwise its message
    goes back."""


class ExceptionInfo:
    """The *einfo* of hooks: ``str(einfo)`` is the traceback, ``einfo.exception`` the exception."""

    __slots__ = ("exception", "traceback", "type")

    def __init__(self, exception: BaseException, text: str) -> None:
        self.exception = exception
        self.type = type(exception)
        self.traceback = text

    def __str__(self) -> str:
        return self.traceback


def execute(
    app: App, task: Task, context: Context, body: Body, disarm: Callable[[], None] | None = None
) -> Outcome:
    """Run *task* for *context*; return the outcome. disarm: called as soon as the body has ended."""
    if (copy := copies.refused(app, task, context)) is not None:
        return copy
    run = Run(app, task, context)
    try:
        run.enter()
        value = run.call(body)
        if disarm is not None:
            disarm()
    except BaseException as error:  # noqa: BLE001 - any exception of the task's code is its outcome
        if disarm is not None:
            disarm()
        return run.outcome_of(run.raised, error)
    else:
        return run.outcome_of(run.returned, value)
    finally:
        run.leave()


def invalid(error: BaseException) -> Outcome:
    """Return the outcome of a message that cannot be run."""
    text = str(error) if isinstance(error, MessageError) else repr(error)
    return Outcome(INVALID, 0.0, storable(text))


def cut_short(app: App, task: Task, context: Context, error: BaseException, since: float) -> Outcome:
    """Return the outcome of a run that raised *error* just as its body began or ended. since: the
    time.perf_counter() of its start."""
    run = Run(app, task, context)
    run.start = since
    return run.outcome_of(run.raised, error)


def started(app: App, task: Task, context: Context) -> ResultRow | None:
    """Return the row of the state STARTED, for the worker to store; None if it is not to be stored."""
    info = {"pid": os.getpid(), "hostname": context.hostname}
    try:
        meta = app.backend.meta(context.id, states.STARTED, info, context=context)
        return app.backend.row(context.id, meta)
    except Exception as error:  # noqa: BLE001 - the task runs anyway
        reraise_interrupt(error)
        logger.warning("state STARTED of task %s[%s] cannot be stored: %s", task.name, context.id, error)
        return None


def store_now(app: App, row: ResultRow | None, patience: float = PATIENCE_SECONDS) -> bool:
    """Store *row* before hooks and signal receivers are called, because they may query the task's state.

    Return False if the store does not accept it within *patience* seconds, because the task's time limit
    still runs. Then the worker stores it, and retries until it succeeds. Also False if results are sent to
    the caller: nobody else can query them, and what is sent cannot be corrected if the task then fails, or
    runs again, because the calls after it could not be sent.
    """
    if row is None or app.stores.sends_results:
        return False
    backend = app.backend
    hanging = _HANGING.get(backend)
    if hanging is not None and not hanging.is_set():
        return False
    answered = Event()

    def store() -> None:
        try:
            backend.store_rows([row])
        finally:
            answered.set()

    try:
        if within(patience, store):
            return True
        _HANGING[backend] = answered
        error: object = f"no answer in {patience:g} s"
    except Exception as raised:  # noqa: BLE001 - perhaps a third-party store; the worker reports the error
        reraise_interrupt(raised)
        error = safe_repr(raised)
    logger.info("state %s of %s is stored later: %s", row[1], row[0], error)
    return False


def ignores_result(context: Context, task: Task) -> bool:
    """Return whether the result of this call is discarded."""
    ignored = context.ignore_result
    return is_ignored(message_headers(context), task.ignore_result) if ignored is None else ignored


class Run:
    """The steps of one run, in order: enter, call, returned or raised, leave."""

    __slots__ = (
        "app",
        "context",
        "doom",
        "info",
        "runtime",
        "start",
        "status",
        "stored",
        "task",
        "token",
        "value",
    )

    def __init__(self, app: App, task: Task, context: Context) -> None:
        self.app = app
        self.task = task
        self.context = context
        self.token: Any = None
        self.status = states.FAILURE
        self.value: Any = None
        self.info: ExceptionInfo | None = None
        self.runtime = 0.0
        self.start = 0.0
        self.stored = False
        self.doom: BaseException | None = None
        """The error with which the task fails without running; its retry options do not apply."""

    def enter(self) -> None:
        context, task = self.context, self.task
        self.start = time.perf_counter()
        self.token = push(context, task)
        if signals.task_prerun.receivers:
            signals.task_prerun.send(
                task, task_id=context.id, task=task, args=context.args, kwargs=context.kwargs
            )
        task.before_start(context.id or "", context.args, context.kwargs)
        self.start = time.perf_counter()

    def call(self, body: Body) -> Any:
        task, function = self.task, self.task.run
        if task.own_call:
            function = task
            enter_by(self.context, task)
        function = task.taking_plain(function)
        headers = message_headers(self.context)
        if FAILED in headers:
            self.doom = followup.failure(headers)
            if self.doom is not None:
                raise self.doom
            function = followup.for_failed(function, headers)
        if self.app.middleware:
            chain = compose(
                self.app.middleware, "execute", lambda context: function(*context.args, **context.kwargs)
            )
            return chain(self.context)
        return function(*body[0], **body[1])

    def outcome_of(self, step: Callable[[Any], Outcome], ended: Any) -> Outcome:
        """Return the outcome made by *step*; an error in doing so is an outcome too."""
        outcome = self._outcome_of(step, ended)
        unsent = self.context.unsent
        if not unsent or outcome.kind in (REQUEUED, INTERRUPTED):  # the next run will send the same calls
            return outcome
        return outcome._replace(follow=(*outcome.follow, *unsent))

    def _outcome_of(self, step: Callable[[Any], Outcome], ended: Any) -> Outcome:
        try:
            return step(ended)
        except BaseException as error:  # a bug here or in an extension; the message still needs an outcome
            if is_away(error) and can_go_back(self.task, self.context):
                return self._unsent(error)
            logger.exception(
                "the outcome of task %s[%s] could not be reported", self.task.name, self.context.id
            )
            if signals.task_internal_error.receivers:
                context = self.context
                signals.task_internal_error.send(
                    self.task, task_id=context.id, args=context.args, kwargs=context.kwargs, exception=error
                )
            if self.stored and self.status == states.FAILURE:
                error = self.value  # others have read it, and errbacks were called with it
            row, text = None, _format(error)
            self.status, self.value, self.info = states.FAILURE, error, ExceptionInfo(error, text)
            follow: tuple[Followed, ...] = ()
            parts: Fields = ()
            try:
                row = self._failure_row(error, text)
                parts = self._parts(states.FAILURE, exception_to_dict(error))
                follow = self._fail_downstream(error, text)
            except Exception:
                logger.exception(
                    "the failure of task %s[%s] could not be stored", self.task.name, self.context.id
                )
            return Outcome(FAILURE, self.runtime, safe_repr(error), text, row, follow, parts, self.stored)

    def returned(self, value: Any) -> Outcome:
        outcome = self.succeeded(value)
        if outcome.kind == SUCCESS:
            task, context = self.task, self.context
            if signals.task_success.receivers:
                signals.task_success.send(task, result=value, runtime=self.runtime)
            self._hook(task.on_success, value, context.id, context.args, context.kwargs)
        return outcome

    def succeeded(self, value: Any) -> Outcome:
        """Like returned(), but call no hooks."""
        self.runtime = time.perf_counter() - self.start
        self.value, self.status = value, states.SUCCESS
        task, context = self.task, self.context
        row = None
        follow: tuple[Followed, ...] = ()
        parts: Fields = ()
        kept = _kept(value)
        try:
            held: list[Envelope] = []
            if calls_within(context) and not ignores_result(context, task):
                self.app.backend.codec.check_encodable(kept)  # if not, the following calls must not be sent
            if context.callbacks:  # made before the state is stored, which has their ids, and sent after it
                with holding_back(self.app) as held:
                    followup.succeeded(self.app, context, kept)
            elif calls_within(context):
                followup.succeeded(self.app, context, kept)
            if not ignores_result(context, task):
                row = self._store(states.SUCCESS, kept)
            parts = self._parts(states.SUCCESS, kept)
            if context.callbacks or task.sees_its_end:
                # A success that a killed process has stored stays, if this one cannot store it again.
                self.stored = store_now(self.app, row, self._patience()) or self.stored
            if held:
                self.app.publisher.push(held, f"what follows {task.name}")
        except Exception as error:  # the result cannot be stored, or the following calls cannot be sent
            if is_away(error) and can_go_back(task, context):
                return self._unsent(error)
            if self.stored:
                reraise_interrupt(error)
                parts = self._parts(states.SUCCESS, kept)
                follow = self._unfollowed(error)
            elif isinstance(error, QWorkerError):
                return self._failed(error)
            else:
                raise
        text = safe_repr(value, task.resultrepr_maxsize) if logger.isEnabledFor(logging.INFO) else ""
        return Outcome(SUCCESS, self.runtime, text, None, row, follow, parts, self.stored)

    def _unfollowed(self, error: BaseException) -> tuple[Followed, ...]:
        """Fail all calls after the task with *error*, because they cannot be sent. The success of the task is
        already stored."""
        context, text = self.context, _format(error)
        logger.error("the calls after task %s[%s] are not sent: %s", self.task.name, context.id, error)
        followup.failed(self.app, context, error, text)
        return () if context.is_eager else followup.unsent(self.app, context, exception_to_dict(error), text)

    def raised(self, error: BaseException) -> Outcome:
        self.runtime = time.perf_counter() - self.start
        task = self.task
        if error is self.doom:
            return self._failed(error)
        if isinstance(error, Interrupted):
            self.status = states.REJECTED
            return Outcome(INTERRUPTED, self.runtime, "the worker ends")
        if isinstance(error, Terminated):
            self.status, self.value = states.REVOKED, error
            return Outcome(TERMINATED, self.runtime, str(error))
        if isinstance(error, Ignore):
            self.status, self.value = states.IGNORED, error
            if isinstance(error, Replaced):
                return Outcome(REPLACED, self.runtime, storable(str(error)))
            # Otherwise its chord, and clients of the rest of its chain, would wait forever.
            parts = self._parts(states.FAILURE, exception_to_dict(error))
            follow: tuple[Followed, ...] = ()
            if not has_read_chain(self.context):
                ended = ChordError(f"Dependency {self.context.id} ended as {states.IGNORED}")
                follow = self._fail_downstream(ended, "")
            return Outcome(IGNORED, self.runtime, safe_repr(error), parts=parts, follow=follow)
        if isinstance(error, Reject):
            return self._rejected(error)
        if isinstance(error, Retry):
            return self._retried(error)
        if isinstance(error, InvalidValue):  # the same arguments would fail again
            return self._failed(error)
        if isinstance(error, task.autoretry_for) and not isinstance(error, task.dont_autoretry_for):
            return self._autoretry(error)
        return self._failed(error)

    def _autoretry(self, error: BaseException) -> Outcome:
        task = self.task
        trace = error.__traceback__
        try:
            options = {**task.retry_kwargs, "countdown": task.autoretry_countdown(self.context)}
            directive = task.retry(exc=error, throw=False, **options)
        except BaseException as final:  # noqa: BLE001 - no retries are left, or it could not be sent
            if final is error:
                error.__traceback__ = trace  # the task's own traceback, without the frames of retry()
                return self._failed(error)
            if final.__context__ is None:
                final.__context__ = error
            return self._rejected(final) if isinstance(final, Reject) else self._failed(final)
        return self._retried(directive)

    def _unsent(self, error: BaseException) -> Outcome:
        """Put the message back, because the calls after the run cannot be sent now; the next run sends
        them."""
        self.status, self.value = states.REJECTED, error
        return Outcome(REQUEUED, self.runtime, reason(error))

    def _retried(self, directive: Retry) -> Outcome:
        task, context = self.task, self.context
        self.status, self.value = states.RETRY, directive
        cause = directive.exc or directive
        text = _format(cause)
        row = None
        if not ignores_result(context, task):
            row = self._store(states.RETRY, exception_to_dict(cause), text)
        self.info = info = ExceptionInfo(cause, text)
        if signals.task_retry.receivers:
            signals.task_retry.send(task, request=context, reason=directive, einfo=info)
        self._hook(task.on_retry, cause, context.id, context.args, context.kwargs, info)
        return Outcome(RETRY, self.runtime, storable(str(directive)), text, row)

    def _rejected(self, error: Reject) -> Outcome:
        self.status, self.value = states.REJECTED, error
        row: ResultRow | None = None
        follow: tuple[Followed, ...] = ()
        parts: Fields = ()
        # A message that was acknowledged before the run cannot go back.
        requeue = error.requeue and (self.context.is_eager or can_go_back(self.task, self.context))
        if not requeue:  # it will never run, so report its end to waiting clients
            text = _format(error)
            row, follow = self._report_failure(error, text), self._fail_downstream(error, text)
            parts = self._parts(states.FAILURE, exception_to_dict(error))
        error.__traceback__ = None
        kind = REQUEUED if requeue else REJECTED
        text = safe_repr(error.reason)
        return Outcome(kind, self.runtime, text, row=row, follow=follow, parts=parts, stored=self.stored)

    def _failed(self, error: BaseException) -> Outcome:
        task, context = self.task, self.context
        self.status, self.value = states.FAILURE, error
        text = _format(error)
        row, follow = self._report_failure(error, text), self._fail_downstream(error, text)
        self._hook(task.on_failure, error, context.id, context.args, context.kwargs, self.info)
        kind = EXPECTED if isinstance(error, task.throws) else FAILURE
        if not context.is_eager:
            # Release the objects of the body, which the traceback's frames hold.
            error.__traceback__ = None
        parts = self._parts(states.FAILURE, exception_to_dict(error))
        return Outcome(kind, self.runtime, safe_repr(error), text, row, follow, parts, self.stored)

    def _parts(self, status: str, result: Any) -> Fields:
        """Return the task's parts for the chord in its message."""
        if not self.context.chord or self.context.is_eager:
            return ()
        return followup.chord_parts(self.app, self.context, status, result)

    def _fail_downstream(self, error: BaseException, text: str) -> tuple[Followed, ...]:
        """Return the calls that fail along with the task, which has failed with *error*."""
        if self.context.is_eager:
            return ()
        return followup.downstream_failures(self.app, self.context, exception_to_dict(error), text)

    def _report_failure(self, error: BaseException, text: str) -> ResultRow | None:
        """Report the final *error* to errbacks and signal receivers; return the row of the failure, None if
        it is not stored. Raises if an errback cannot be sent now and the message can go back."""
        task, context = self.task, self.context
        row = None
        ignored = ignores_result(context, task)
        if not ignored or task.store_errors_even_if_ignored:
            row = self._failure_row(error, text)
        if context.errbacks or task.sees_its_end:
            self.stored = store_now(self.app, row, self._patience())
        if context.errbacks:
            followup.failed(self.app, context, error, text, again=can_go_back(task, context))
        self.info = info = ExceptionInfo(error, text)
        if signals.task_failure.receivers:
            signals.task_failure.send(
                task,
                task_id=context.id,
                exception=error,
                args=context.args,
                kwargs=context.kwargs,
                traceback=error.__traceback__,
                einfo=info,
            )
        return row

    def _failure_row(self, error: BaseException, text: str) -> ResultRow | None:
        """Return the row of the failure, without what cannot be written; None if nothing can: then the worker
        makes a shorter one. The errbacks are called in any case."""
        for describe in (True, False):
            try:
                return self._store(states.FAILURE, exception_to_dict(error), text, describe)
            except Exception:
                name, id = self.task.name, self.context.id
                logger.exception("the failure of task %s[%s] cannot be written", name, id)
        return None

    def _patience(self) -> float:
        """Return for how long to wait for the result store: the calls that follow need time, too."""
        limit = self.context.time_limit
        return PATIENCE_SECONDS if not limit else max(0.0, min(PATIENCE_SECONDS, (limit - self.runtime) / 2))

    def leave(self) -> None:
        """Call the last hook, send the last signal, and restore the previous context. Always called."""
        task, context = self.task, self.context
        context.ended = self.status, self.value  # for an eager caller
        if self.status in (states.SUCCESS, states.FAILURE):
            arguments = context.id, context.args, context.kwargs, self.info
            self._hook(task.after_return, self.status, self.value, *arguments)
        if signals.task_postrun.receivers:
            self._hook(
                signals.task_postrun.send,
                task,
                task_id=context.id,
                task=task,
                args=context.args,
                kwargs=context.kwargs,
                retval=self.value,
                state=self.status,
            )
        if self.token is not None:
            pop(self.token)

    def _hook(self, hook: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            hook(*arguments, **named)
        except BaseException as error:  # errors of hooks do not change the outcome
            if isinstance(error, KeyboardInterrupt) and self.context.is_eager:
                raise  # Ctrl-C in the caller's process
            logger.exception("%s of task %s raised", hook.__name__, self.task.name)

    def _store(
        self, status: str, result: Any, text: str | None = None, describe: bool = True
    ) -> ResultRow | None:
        """Return the row of the state, for the worker to store before the ack. describe: include the
        arguments.

        An eager call has no worker: its row is stored here, if ``task_store_eager_result`` is set.
        """
        context, backend = self.context, self.app.backend
        if context.is_eager and not self.app.conf.task_store_eager_result:
            backend.codec.check_encodable(result)
            return None
        meta = backend.meta(
            context.id, status, result, text, context if describe else None, context.properties
        )
        if not context.is_eager:
            return backend.row(context.id, meta, kept_in(message_headers(context)))
        try:
            backend.store(context.id, meta)
        except BackendError as error:  # not fatal, because the caller gets the value directly
            logger.warning("the result of task %s cannot be stored: %s", context.id, error)
        return None


def _kept(value: Any) -> Any:
    """Return the stored form of *value*: for a result handle, the tuple that result_from_tuple() reads."""
    kind = type(value)
    if kind.__module__ == "builtins":  # for these, hasattr() is slow
        return value
    return value.as_tuple() if hasattr(kind, "_members_described") else value


def _format(error: BaseException) -> str:
    """Return the traceback as text that every store accepts, from the task's own first frame, limited in
    size."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # noqa: BLE001 - an exception whose own methods raise
        text = f"{type(error).__name__}: (its text is not available)\n"
    if len(text) > MAX_TRACEBACK:
        text = f"{text[: MAX_TRACEBACK // 2]}\n...\n{text[-MAX_TRACEBACK // 2 :]}"
    return storable(text)
