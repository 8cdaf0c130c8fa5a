"""Followup: sends the calls after a task: callbacks, the next call of its chain, errbacks.

Comes from:  execution, after the body and before the ack; the calls are in the task's message.
Goes to:     publishing, as calls with this task as parent; some errbacks run at once.
Thread:      the one that ran the task.

The ids of the calls were assigned when they were linked, so a task that runs again sends the same calls
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from qworker import states
from qworker.canvas.join_body import storable
from qworker.canvas.membership import calls_in, errbacks_of, first_calls, parts_of, publication
from qworker.canvas.plain import known_task
from qworker.canvas.signatures import Signature, is_ignored, listed, signature
from qworker.canvas.stamping import hand_on
from qworker.contracts import App, Task
from qworker.errors import (
    ChordError,
    EncodeError,
    InvalidTaskMessage,
    NotSupported,
    PublishError,
    QWorkerError,
    TaskError,
)
from qworker.interrupts import reraise_interrupt
from qworker.message.chain_text import WrittenCalls
from qworker.message.context import Context, carried_chain, message_headers
from qworker.message.exceptions import exception_from_dict, exception_to_dict
from qworker.message.marks import CAUSE, FAILED, RUN, mark, options_of_call, run_in
from qworker.message.serialization import encode_json
from qworker.naming import ids_of
from qworker.publishing.call import tidied
from qworker.publishing.transactions import holding_back
from qworker.safe_repr import safe_repr
from qworker.tasks.coroutines import run_to_end
from qworker.tasks.outcome import CUT_SHORT, Fields, Followed
from qworker.tasks.unsent import is_away
from qworker.transports.lease import Envelope

logger = logging.getLogger(__name__)


def succeeded(app: App, context: Context, value: Any) -> None:
    """Send the callbacks and the next call of the chain, with *value* before their arguments.

    Raises PublishError if one can never be sent, BrokerUnavailable or BackendError if it cannot be sent now.
    """
    for callback in context.callbacks or ():
        follow(app, context, callback, (value,))
    # The chain is in reverse order: the last call is next, and carries the others.
    carried = carried_chain(context)
    if carried is not None:
        follow(app, context, carried.next, (value,), chain=carried.rest)
    elif context.chain:
        follow(app, context, context.chain[-1], (value,), chain=context.chain[:-1] or None)


def failed(
    app: App,
    context: Context,
    error: BaseException,
    traceback: str,
    again: bool = False,
    runs: bool = True,
) -> None:
    """Call the errbacks.

    An errback that takes ``(request, exc, traceback)`` before its own arguments runs here. Any other one, and
    an immutable, bound or unknown one, is sent with the id of the failed task before its arguments.

    - again: the caller can repeat the call, so raise an error that prevents sending now. Otherwise nothing is
      raised.
    - runs: False runs none here.
    """
    for errback in context.errbacks or ():
        call = Signature(errback, app=app)
        arguments = (context, error, traceback)
        try:
            if not _takes(app.tasks.get(call.task), call, arguments):
                follow(app, context, errback, (context.id,))
            elif runs:
                _run_here(call, arguments)
            else:
                logger.error(
                    "errback %s of task %s[%s] is not called again: it may have killed the last processes",
                    call.task, context.task, context.id,
                )  # fmt: skip
        except QWorkerError as unsent:
            if again and is_away(unsent):
                raise
            # The failure of the task itself is still reported and stored.
            logger.error("an errback of task %s[%s] was not sent: %s", context.task, context.id, unsent)
        except BaseException as problem:  # noqa: BLE001 - also CancelledError and SystemExit
            _log_or_raise(problem, call, context)


def _log_or_raise(problem: BaseException, call: Signature, context: Context) -> None:
    """Log the error of the errback *call*, whatever it is: the others are still called. In an eager
    call, Ctrl-C and a closed generator are the caller's."""
    if context.is_eager and isinstance(problem, KeyboardInterrupt | GeneratorExit):
        raise problem
    logger.error("errback %s of task %s[%s] raised", call.task, context.task, context.id, exc_info=problem)


def _run_here(call: Signature, arguments: tuple[Any, ...]) -> None:
    """Run an errback now; log its error."""
    try:
        cloned = call.clone(arguments)
        returned = call.type.taking_plain(call.type)(*cloned.args, **cloned.kwargs)
        if isinstance(returned, Coroutine):
            run_to_end(returned)
    except BaseException as problem:  # noqa: BLE001 - as above
        _log_or_raise(problem, call, arguments[0])


def chord_parts(app: App, context: Context, status: str, result: Any) -> Fields:
    """Return the parts of a task that ended with *status*, for the chord in its message (Celery's format).

    result: the value, or the exception as stored. Raises EncodeError.
    """
    number = -1 if context.group_index is None else context.group_index
    return _chord_parts(app, context.chord, context.group, number, context.id, status, result)


def _chord_parts(
    app: App, body: Any, group: Any, number: Any, task_id: Any, status: str, result: Any
) -> Fields:
    if not body or not isinstance(group, str) or type(number) is not int or not isinstance(task_id, str):
        return ()
    try:
        joins = app.backend.joins
    except NotSupported:
        return ()
    try:
        written = app.backend.codec.encode_value(storable(body, app), ("join", group))
    except Exception as error:  # noqa: BLE001 - any program may have written the body
        logger.error(
            "the end of task %s cannot be recorded for its chord, whose body is invalid: %s", task_id, error
        )
        return ()
    part = joins.chord_part(group, number, task_id, status, result, written)
    return () if part is None else (tuple(part),)


def downstream_failures(
    app: App, context: Context, error: Mapping[str, Any], traceback: str
) -> tuple[Followed, ...]:
    """Return the results of the calls in the chain after the task, which has failed with *error* (as stored).
    They fail with the same error, so that no client waits for them."""
    carried = carried_chain(context)
    try:
        chain = context.chain or ()
    except InvalidTaskMessage as damaged:
        assert carried is not None
        logger.error("the calls after task %s[%s] cannot be read: %s", context.task, context.id, damaged)
        chain = [carried.next]
    calls = calls_in(chain, following=True)
    return ended(app, calls, error, traceback, context.id, reply_to=context.reply_to)


def unsent(app: App, context: Context, error: Mapping[str, Any], traceback: str) -> tuple[Followed, ...]:
    """Return the results of the calls after a task that succeeded, if none of them can be sent. They fail
    with *error* (as stored), so that no client waits for them."""
    linked = calls_in(context.callbacks or (), following=True)
    callbacks = ended(app, linked, error, traceback, context.id, reply_to=context.reply_to)
    return (*callbacks, *downstream_failures(app, context, error, traceback))


def chord_failed(
    app: App, body: Signature, why: str, cause: Mapping[str, Any] | None = None
) -> tuple[list[Envelope], tuple[Followed, ...]]:
    """Return the messages to the errbacks of the *body* of a failed chord, and the results of its calls.

    cause: the stored error of the member, if the calls fail with that.

    Celery's ``link_error()`` adds an errback to nested chords, too. If the body is a member of an outer chord
    with the same errback, the outer chord, which fails too, calls it. As in Celery, the errbacks are stored
    as children of the body.

    This is for chords in Celery's format, because Celery's workers would run a body that is sent to fail. An
    errback that takes ``(request, exc, traceback)`` gets these only in qworker's workers; Celery's workers
    pass it the id of the body.
    """
    failing: list[Signature] = []
    error = exception_to_dict(ChordError(why)) if cause is None else cause
    children: dict[str, list[Any]] = {}
    with holding_back(app) as held:
        for call, rest in first_calls(body):
            failing += (call, *calls_in(rest))
            last = rest[0] if rest else call
            later = errbacks_of((last.get("options") or {}).get("chord"))
            errbacks: list[Any] = []
            for number, each in enumerate(listed(call.options.get("link_error"))):
                if each in later:
                    continue
                errback = signature(each, app=app)
                if errback.id is None and call.id is not None:  # repeated reports must make the same call
                    errback.set(task_id=f"{call.id}-errback-{number}")
                try:
                    _send_errback(app, errback, call, why, publication(body), cause)
                    errbacks.append([[errback.id, None], None])
                except Exception as unsent:
                    if is_away(unsent):
                        raise
                    reraise_interrupt(unsent)
                    logger.exception("an errback of %s[%s] was not sent", call.task, call.id)
            if errbacks and call.id is not None:
                children[call.id] = [[[f"{call.id}-errbacks", None], errbacks]]
    return held, ended(app, failing, error, "", children=children)


def _send_errback(
    app: App,
    errback: Signature,
    call: Signature,
    why: str,
    marks: Mapping[str, Any],
    cause: Mapping[str, Any] | None,
) -> None:
    if errback["subtask_type"] is not None:
        if errback.id is not None:  # the ids of its calls must be the same, too
            errback = errback.frozen(errback.id, ids=ids_of(errback.id)).step
        from qworker.publishing.workflows import planned, start

        made = planned(app, errback, (call.id,), run=run_in(marks))
        for each in made.calls:
            mark(each["options"], marks)
        start(app, made)
        return
    known = {RUN: "", **options_of_call(tidied(app, errback.options)), **marks}
    if _takes(app.tasks.get(errback.task), errback, (None, None, "")):
        known[FAILED] = {"id": call.id, "task": call.task, "why": why}
        known[FAILED] |= {"args": _in_headers(call.args), "kwargs": _in_headers(call.kwargs)}
        if cause is not None:
            known[CAUSE] = cause
    args = errback.args if errback.immutable else (call.id, *errback.args)
    app.send_task(errback.task, args, errback.kwargs, **known)


def _in_headers(value: Any) -> Any:
    """Return *value*, or its repr if headers, which are always JSON, cannot contain it."""
    try:
        encode_json(value, {})
    except EncodeError:
        return safe_repr(value)
    return value


def failure(headers: Mapping[str, Any]) -> BaseException | None:
    """Return the error with which a call fails instead of running; None if it runs. *headers*, of its
    message, contain FAILED."""
    failed_call = headers[FAILED]
    return None if isinstance(failed_call, Mapping) else _failure(str(failed_call), headers)


def error_of_chord(app: App, kind: str, headers: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the stored error of a call that only has to fail, because its chord has failed, but whose
    process died or was killed; None for any other call or end. kind: of its Outcome.

    It has the values of a message, so marshal may not support it, and an exception made from it may have any
    class. If results cannot contain these values, it is a ChordError.
    """
    failed_call = headers.get(FAILED) if kind in CUT_SHORT else None
    if failed_call is None or isinstance(failed_call, Mapping):
        return None
    cause = headers.get(CAUSE)
    if cause and isinstance(cause, dict):
        with suppress(EncodeError):
            app.backend.codec.check_encodable(cause)
            return cause
    return exception_to_dict(ChordError(str(failed_call)))


def for_failed(function: Callable[..., Any], headers: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function that calls *function*, an errback of a failed chord body, with the request and error
    in *headers*, of its message."""
    failed_call = headers[FAILED]
    request = Context(**{name: failed_call.get(name) for name in ("id", "task", "args", "kwargs")})
    error = _failure(str(failed_call.get("why")), headers)
    return lambda _, *args, **kwargs: function(request, error, "", *args, **kwargs)


def _failure(why: str, headers: Mapping[str, Any]) -> BaseException:
    cause = headers.get(CAUSE)
    return exception_from_dict(cause) if cause and isinstance(cause, Mapping) else ChordError(why)


def ended(
    app: App,
    calls: Iterable[Signature],
    error: Mapping[str, Any],
    traceback: str,
    parent: str | None = None,
    children: Mapping[str, list[Any]] = MappingProxyType({}),
    reply_to: str | None = None,
) -> tuple[Followed, ...]:
    """Return the results of *calls* that fail with *error* (as stored) without running. One whose result is
    ignored has none, unless its failure is stored anyway or a join waits for it.

    - children: of some calls, by id, in the form of ``as_tuple()``.
    - reply_to: the queue for their results, unless a call names another.
    """
    found: list[Followed] = []
    for call in calls:
        try:
            found += _ended(app, call, error, traceback, parent, children, reply_to)
        except Exception as problem:  # noqa: BLE001 - any program may have written it
            logger.error("the failure of the call of %s cannot be reported: %s", call.task, problem)
            why = TaskError(f"a task before it failed, and its error cannot be written: {safe_repr(problem)}")
            short = exception_to_dict(why)
            try:
                found += _ended(app, call, short, "", parent, {}, reply_to, describe=False)
            except Exception:
                logger.exception("a shorter failure of the call of %s cannot be reported either", call.task)
    return tuple(found)


def _ended(
    app: App,
    call: Signature,
    error: Mapping[str, Any],
    traceback: str,
    parent: str | None,
    children: Mapping[str, list[Any]],
    reply_to: str | None,
    describe: bool = True,
) -> Iterator[Followed]:
    given = call.options
    task_id = given.get("task_id")
    if not isinstance(task_id, str):
        return
    headers = given.get("headers")
    headers = {**(headers if isinstance(headers, Mapping) else {}), "id": task_id}
    chord = given.get("chord"), given.get("group_id"), given.get("group_index", -1)
    parts = (
        *(tuple(part) for part in parts_of(headers, states.FAILURE)),
        *_chord_parts(app, *chord, task_id, states.FAILURE, error),
    )
    if not parts and not _stores_failures(app, call):
        return
    places = {"group_id": given.get("group_id"), "parent_id": parent}
    known: dict[str, Any] = {name: value for name, value in places.items() if isinstance(value, str)}
    if task_id in children:
        known["children"] = children[task_id]
    properties = {"reply_to": given.get("reply_to") or reply_to}
    context = None
    if describe and app.conf.result_extended:
        context = Context(id=task_id, task=call.task, args=call.args, kwargs=call.kwargs, retries=0)
        context.properties = properties
    meta = app.backend.meta(task_id, states.FAILURE, error, traceback, context, properties, **known)
    row = app.backend.row(task_id, meta)
    if row is not None:
        yield row, parts


def _stores_failures(app: App, call: Signature) -> bool:
    """Return whether a failure of *call* is stored; True if its task is not known here."""
    task = known_task(call, app)
    return task is None or bool(task.store_errors_even_if_ignored) or not is_ignored(call, task)


def _takes(task: Task | None, errback: Signature, arguments: tuple[Any, ...]) -> bool:
    """Return whether *task*, called by *errback*, takes *arguments* first, as in Celery."""
    if task is None or task.bind or errback.immutable:
        return False
    from inspect import signature  # here, because it takes 10 ms and is only used after failures

    try:
        signature(task.run).bind(*arguments, *errback.args, **errback.kwargs)
    except (TypeError, ValueError):
        return False
    return True


def follow(app: App, context: Context, call: Mapping[str, Any], args: tuple[Any, ...], **more: Any) -> None:
    """Send *call* after the task of *context*, with *args* before its own. more: additional options.

    Raises PublishError or BrokerUnavailable if it cannot be sent.
    """
    following = signature(call, app=app)
    options = {**following.options, **more}
    following["options"] = {name: value for name, value in options.items() if value is not None}
    run = run_in(message_headers(context))
    if context.stamps:
        hand_on(following, context.stamped_headers or list(context.stamps), context.stamps)
    try:
        if following["subtask_type"] is None:
            _tidy(app, context, following)
            following.add(args)
            if run or following.id is None or not app.publisher.publish_next(following):
                _read_chain(following)
                mark(following["options"], {RUN: run})
                following.apply_async()
            return
        _read_chain(following)
        if app.conf.task_always_eager:  # no worker joins what runs here
            with suppress(*(() if app.conf.task_eager_propagates else (Exception,))):
                following.apply_async(args)
            return
        from qworker.publishing.workflows import planned, start

        made = planned(app, following, args, run=run)
        for each in made.calls:
            _tidy(app, context, each)
        start(app, made)
    except TypeError as error:  # it does not accept *args* before its own arguments
        raise PublishError(
            f"{following.task}, which follows {context.task}, was not sent: {error}"
        ) from error


def _read_chain(call: Signature) -> None:
    """Read the chain of *call* as calls."""
    chain = call.options.get("chain")
    if type(chain) is WrittenCalls:
        try:
            call["options"]["chain"] = chain.read()
        except InvalidTaskMessage as damaged:
            raise PublishError(
                f"{call.task} was not sent: the calls after it cannot be read: {damaged}"
            ) from None


def _tidy(app: App, context: Context, call: Signature) -> None:
    """Keep only the known options of a call; see tidied()."""
    call["options"] = options = tidied(app, call.options)
    if context.reply_to is not None:  # the first caller receives all results
        options.setdefault("reply_to", context.reply_to)
