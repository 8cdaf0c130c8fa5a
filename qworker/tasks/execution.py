"""Execution: one run of one task, as a pipe of named steps, ending in an Outcome.

Comes from:  a pool child, a thread of the threads pool, or an eager call.
Goes to:     back as an Outcome, with the row that the worker is to store in it.
Thread:      whichever runs the task; everything it needs is passed in.

Whatever the body raises, this returns an Outcome: SystemExit and KeyboardInterrupt are failures of the task,
not of the process.
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
from qworker.context import Context, calls_within, enter_by, message_headers, pop, push
from qworker.errors import (
    BackendError,
    EncodeError,
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
from qworker.interrupts import let_pass, within
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
    from qworker.app import QWorker
    from qworker.context import Context
    from qworker.message.protocol import Body
    from qworker.tasks.task import Task

logger = logging.getLogger(__name__)

MAX_TRACEBACK = 64 * 1024
"""Characters of a traceback that are kept."""
PATIENCE_SECONDS = 0.5
"""How long a task that has ended waits for the result store, so that who is called then sees its state."""
_HANGING: WeakKeyDictionary[Any, Event] = WeakKeyDictionary()
"""Result stores that have not answered in that time, each with an event that is set when it does. Any thread:
each use is one call."""


class Interrupted(SoftTimeLimitExceeded):
    """The worker ends and waits no longer. A task may catch it and end in its own way; else it goes back."""


class ExceptionInfo:
    """What hooks get as *einfo*: ``str(einfo)`` is the traceback, ``einfo.exception`` the exception."""

    __slots__ = ("exception", "traceback", "type")

    def __init__(self, exception: BaseException, text: str) -> None:
        self.exception = exception
        self.type = type(exception)
        self.traceback = text

    def __str__(self) -> str:
        return self.traceback


def execute(
    app: QWorker, task: Task[..., Any], context: Context, body: Body, disarm: Callable[[], None] | None = None
) -> Outcome:
    """Run *task* for *context*; return how it ended. disarm: called as soon as the body is done."""
    if (copy := copies.refused(app, task, context)) is not None:
        return copy
    run = Run(app, task, context)
    try:
        run.enter()
        value = run.call(body)
        if disarm is not None:
            disarm()
    except BaseException as error:  # noqa: BLE001 - the task's code: whatever it raises is the outcome
        if disarm is not None:
            disarm()
        return run.tell(run.raised, error)
    else:
        return run.tell(run.returned, value)
    finally:
        run.leave()


def invalid(error: BaseException) -> Outcome:
    """The outcome of a message that cannot be run."""
    text = str(error) if isinstance(error, MessageError) else repr(error)
    return Outcome(INVALID, 0.0, storable(text))


def cut_short(
    app: QWorker, task: Task[..., Any], context: Context, error: BaseException, since: float
) -> Outcome:
    """The outcome of a run out of which *error* came, having been raised just as the body began or ended.
    since: by time.perf_counter()."""
    run = Run(app, task, context)
    run.start = since
    return run.tell(run.raised, error)


def started(app: QWorker, task: Task[..., Any], context: Context) -> ResultRow | None:
    """The row of the state STARTED, for the worker to store. Never fails the run."""
    info = {"pid": os.getpid(), "hostname": context.hostname}
    try:
        return app.backend.row(
            context.id, app.backend.meta(context.id, states.STARTED, info, context=context)
        )
    except EncodeError as error:
        logger.warning("state STARTED of %s is not stored: %s", context.id, error)
        return None


def store_now(app: QWorker, row: ResultRow | None) -> bool:
    """Store *row* before anybody is called who may ask for the state of the task. False when the store does
    not take it at once: then it goes to the worker, which tries until it does. Nobody waits for that here:
    the task's time limit still runs."""
    if row is None:
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
        if within(PATIENCE_SECONDS, store):
            return True
        _HANGING[backend] = answered
        error: object = f"no answer in {PATIENCE_SECONDS:g} s"
    except Exception as raised:  # noqa: BLE001 - a store, maybe a third party's: the worker says what it is
        let_pass(raised)
        error = safe_repr(raised)
    logger.info("state %s of %s is stored later: %s", row[1], row[0], error)
    return False


def ignores_result(context: Context, task: Task[..., Any]) -> bool:
    """Whether nobody is to be told what this call returns."""
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

    def __init__(self, app: QWorker, task: Task[..., Any], context: Context) -> None:
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
        """With what it fails without having been run: nothing of its own says how it goes on."""

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

    def tell(self, step: Callable[[Any], Outcome], ended: Any) -> Outcome:
        """Make the outcome; what goes wrong with that itself is an outcome too."""
        outcome = self._told(step, ended)
        unsent = self.context.unsent
        if not unsent or outcome.kind in (REQUEUED, INTERRUPTED):  # the next run sends the same
            return outcome
        return outcome._replace(follow=(*outcome.follow, *unsent))

    def _told(self, step: Callable[[Any], Outcome], ended: Any) -> Outcome:
        try:
            return step(ended)
        except BaseException as error:  # ours or an extension's fault: the message must still get its outcome
            if is_away(error) and can_go_back(self.task, self.context):
                return self._unsent(error)
            logger.exception("the outcome of task %s[%s] could not be told", self.task.name, self.context.id)
            if signals.task_internal_error.receivers:
                context = self.context
                signals.task_internal_error.send(
                    self.task, task_id=context.id, args=context.args, kwargs=context.kwargs, exception=error
                )
            row, text = None, _format(error)
            self.status, self.value, self.info = states.FAILURE, error, ExceptionInfo(error, text)
            follow: tuple[Followed, ...] = ()
            parts: Fields = ()
            try:
                # Without the context, which may be what cannot be stored.
                row = self._store(states.FAILURE, exception_to_dict(error), text, describe=False)
                follow, parts = (
                    self._doomed(error, text),
                    self._parts(states.FAILURE, exception_to_dict(error)),
                )
            except Exception:
                logger.exception("nor could its failure be stored")
            return Outcome(FAILURE, self.runtime, safe_repr(error), text, row, follow, parts)

    def returned(self, value: Any) -> Outcome:
        self.runtime = time.perf_counter() - self.start
        self.value, self.status = value, states.SUCCESS
        task, context = self.task, self.context
        row = None
        follow: tuple[Followed, ...] = ()
        kept = _kept(value)
        try:
            held: list[Envelope] = []
            if calls_within(context) and not ignores_result(context, task):
                self.app.backend.check_encodable(kept)  # else nothing that follows may be sent
            if context.callbacks:  # made before the state is stored, which names them, and sent after it
                with holding_back(self.app) as held:
                    followup.succeeded(self.app, context, kept)
            elif calls_within(context):
                followup.succeeded(self.app, context, kept)
            if not ignores_result(context, task):
                row = self._store(states.SUCCESS, kept)
            parts = self._parts(states.SUCCESS, kept)
            if context.callbacks or task.sees_its_end:
                self.stored = store_now(self.app, row)
            if held:
                self.app.publisher.push(held, f"what follows {task.name}")
        except Exception as error:  # a result that nobody can store, or what comes after cannot be sent
            if is_away(error) and can_go_back(task, context):
                return self._unsent(error)
            if self.stored:
                let_pass(error)
                follow = self._unfollowed(error)
            elif isinstance(error, QWorkerError):
                return self._failed(error)
            else:
                raise
        if signals.task_success.receivers:
            signals.task_success.send(task, result=value, runtime=self.runtime)
        self._hook(task.on_success, value, context.id, context.args, context.kwargs)
        text = safe_repr(value, task.resultrepr_maxsize) if logger.isEnabledFor(logging.INFO) else ""
        return Outcome(SUCCESS, self.runtime, text, None, row, follow, parts, self.stored)

    def _unfollowed(self, error: BaseException) -> tuple[Followed, ...]:
        """What fails with *error*, since it cannot be sent: all that comes after the task. That the task has
        succeeded is stored, and stands for ever."""
        context, text = self.context, _format(error)
        logger.error("what follows task %s[%s] is not sent: %s", self.task.name, context.id, error)
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
            # Its chord would wait for a value for ever.
            parts = self._parts(states.FAILURE, exception_to_dict(error))
            return Outcome(IGNORED, self.runtime, safe_repr(error), parts=parts)
        if isinstance(error, Reject):
            return self._rejected(error)
        if isinstance(error, Retry):
            return self._retried(error)
        if isinstance(error, InvalidValue):  # the same arguments will not do next time either
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
        except BaseException as final:  # noqa: BLE001
            # No retry is left, or the next attempt could not be sent.
            if final is error:
                error.__traceback__ = trace  # the task's own, without the way through retry()
                return self._failed(error)
            if final.__context__ is None:
                final.__context__ = error
            return self._rejected(final) if isinstance(final, Reject) else self._failed(final)
        return self._retried(directive)

    def _unsent(self, error: BaseException) -> Outcome:
        """What comes after the run cannot be sent for now: the message goes back, and the next run sends the
        same calls."""
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
        if not requeue:  # it will never run: who waits for it is told
            text = _format(error)
            row, follow = self._tell_failure(error, text), self._doomed(error, text)
            parts = self._parts(states.FAILURE, exception_to_dict(error))
        error.__traceback__ = None
        kind = REQUEUED if requeue else REJECTED
        text = safe_repr(error.reason)
        return Outcome(kind, self.runtime, text, row=row, follow=follow, parts=parts, stored=self.stored)

    def _failed(self, error: BaseException) -> Outcome:
        task, context = self.task, self.context
        self.status, self.value = states.FAILURE, error
        text = _format(error)
        row, follow = self._tell_failure(error, text), self._doomed(error, text)
        self._hook(task.on_failure, error, context.id, context.args, context.kwargs, self.info)
        kind = EXPECTED if isinstance(error, task.throws) else FAILURE
        if not context.is_eager:
            # The traceback's frames hold everything the body held: let go of it.
            error.__traceback__ = None
        parts = self._parts(states.FAILURE, exception_to_dict(error))
        return Outcome(kind, self.runtime, safe_repr(error), text, row, follow, parts, self.stored)

    def _parts(self, status: str, result: Any) -> Fields:
        """What the task is a part of by the chord in its message."""
        if not self.context.chord or self.context.is_eager:
            return ()
        return followup.chord_parts(self.app, self.context, status, result)

    def _doomed(self, error: BaseException, text: str) -> tuple[Followed, ...]:
        """What ends along with the task, which has failed with *error* for good."""
        if self.context.is_eager:
            return ()
        return followup.doomed(self.app, self.context, exception_to_dict(error), text)

    def _tell_failure(self, error: BaseException, text: str) -> ResultRow | None:
        """Tell errbacks and observers of the final *error*; return the row of the failure, None when it is
        not to be stored. Raises what tells that an errback cannot be sent for now, if the message can go
        back."""
        task, context = self.task, self.context
        row = None
        ignored = ignores_result(context, task)
        if not ignored or task.store_errors_even_if_ignored:
            row = self._store(states.FAILURE, exception_to_dict(error), text)
        if context.errbacks or task.sees_its_end:
            self.stored = store_now(self.app, row)
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

    def leave(self) -> None:
        """Whatever happened: the last hook, the last signal, the old context."""
        task, context = self.task, self.context
        context.ended = self.status, self.value  # for who called eagerly
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
        except BaseException as error:  # a hook observes; the outcome stands
            if isinstance(error, KeyboardInterrupt) and self.context.is_eager:
                raise  # Ctrl-C, of who made the call
            logger.exception("%s of task %s raised", hook.__name__, self.task.name)

    def _store(
        self, status: str, result: Any, text: str | None = None, describe: bool = True
    ) -> ResultRow | None:
        """The row of the state, for the worker to store before the ack. describe: and what was asked for.

        An eager call has no worker: it stores here, once, and only if it is to.
        """
        context, backend = self.context, self.app.backend
        if context.is_eager and not self.app.conf.task_store_eager_result:
            backend.check_encodable(result)
            return None
        described = context if describe else None
        meta = backend.meta(context.id, status, result, traceback=text, context=described)
        if not context.is_eager:
            return backend.row(context.id, meta, kept_in(message_headers(context)))
        try:
            backend.store(context.id, meta)
        except BackendError as error:  # no message waits for it, and the caller has the value
            logger.warning("the result of %s is not stored: %s", context.id, error)
        return None


def _kept(value: Any) -> Any:
    """What is kept of the *value* that a task returned: the handle of a call or of a workflow is described,
    as result_from_tuple() reads it."""
    return value.as_tuple() if hasattr(type(value), "_members_described") else value


def _format(error: BaseException) -> str:
    """The traceback as text, from the task's own first frame on; bounded, and fit for every store."""
    try:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") == __name__:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # noqa: BLE001 - an exception whose own methods raise
        text = f"{type(error).__name__}: (its text cannot be had)\n"
    if len(text) > MAX_TRACEBACK:
        text = f"{text[: MAX_TRACEBACK // 2]}\n...\n{text[-MAX_TRACEBACK // 2 :]}"
    return storable(text)
