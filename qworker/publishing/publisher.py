"""Publisher: turns calls into messages, and sends them to the broker.

Comes from:  ``task.delay``, ``apply_async``, ``apply_many``, ``retry``; ``app.send_task``, ``send_many``.
Goes to:     routing, protocol, middleware and signals, then ``Sender.push``.
Thread:      any; cached values are replaced as a whole, never changed.

For speed, the headers of a call without options, middleware or signal receivers come from a template made at
the task's first call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple, cast

from qworker.canvas.signatures import Signature
from qworker.contracts import App, Task
from qworker.errors import BrokerUnavailable, PublishError
from qworker.interrupts import deferred, reraise_interrupt
from qworker.message.context import Context, add_children, calling_context
from qworker.message.marks import MARKS, RUN, mark, marks_in, options_of_call, run_in, unmarked
from qworker.message.protocol import (
    EncodedMessage,
    TaskMessage,
    check_size,
    decode_body,
    encode,
    encode_parts,
    parse_headers,
    parse_properties,
)
from qworker.message.serialization import content_types
from qworker.middleware import compose
from qworker.naming import task_id, task_ids
from qworker.process.randomness import RANDOM
from qworker.publishing.call import Call, Invocation, check_options, make_call, read_call, times_of
from qworker.publishing.plain_calls import FixedOptions, MemberCalls, PlainCalls, fixed_options, plain_calls
from qworker.publishing.retry import RetryPolicy
from qworker.publishing.routing import Destination, Router
from qworker.publishing.transactions import holding_back, sender
from qworker.results.result import AsyncResult
from qworker.signals import after_task_publish, before_task_publish
from qworker.transports.lease import Envelope

logger = logging.getLogger(__name__)

_NO_KEYWORDS: dict[str, Any] = {}

_OF_A_WORKFLOW = {"add_to_parent": False}
"""A calling task records the workflow as its child, not the workflow's calls."""

MOST_ALIKE = 256
"""Combinations of a task and options to keep templates for."""

_UNUSED: Any = object()

_OF_OTHERS = frozenset(["chain", "chord", "link", "link_error"])
"""Options that are calls themselves."""

Answer = Callable[[], AsyncResult[Any]]

_Ready = tuple[Envelope, EncodedMessage | None, Call | None]
"""An envelope to be sent, with its message and call; these are None if signals were sent already."""


class _Derived(NamedTuple):
    """Values derived from the settings, cached until the settings change."""

    revision: object
    router: Router
    plain: dict[str, PlainCalls | None]
    """The PlainCalls of each task, by name; None for a task whose calls are never plain."""
    alike: dict[tuple[str, FixedOptions], PlainCalls | None]
    """The same for calls with options that were used more than once."""
    once: set[tuple[str, FixedOptions]]
    """Combinations of a task and options that were used at least once."""


class Publisher:
    """Publishes the calls of one app."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._derived: _Derived | None = None

    # -- calls --

    def call(self, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncResult[Any]:
        """Publish a call without options."""
        app, derived = self.app, self._derived
        if derived is None or derived.revision is not app.conf.revision:
            derived = self._derive()
        try:
            plain = derived.plain[task.name]
        except KeyError:
            plain = self._plain(task)
        if plain is None or before_task_publish.receivers or after_task_publish.receivers:
            return self.call_with(Invocation(task, task.name, args, kwargs, {}))
        identity = task_id()
        context = calling_context()
        if context is None or context.id is None:
            envelope = plain.envelope(identity, args, kwargs)
        else:
            envelope = plain.envelope(identity, args, kwargs, context.root_id, context.id)
        self.push((envelope,), task.name)
        result: AsyncResult[Any] = AsyncResult(identity, None, None, app, None, plain.queue, plain.ignored)
        if context is not None:
            add_children(context, result)
        return result

    def call_with(self, invocation: Invocation) -> AsyncResult[Any]:
        """Publish a call with options."""
        if (alike := self._alike(invocation)) is not None:
            envelope, result = self._written(alike, invocation)
            self.push((envelope,), invocation.name)
            return _recorded(result, invocation.options.get("add_to_parent"))
        call, task = self._make_call(invocation), invocation.task
        if task is not None and self.app.conf.task_always_eager:
            return _call_eagerly(task, call.message, invocation.options)
        self._through_middleware(
            call, lambda message: self._deliver([self._prepare(call, message)], call.message.task)
        )
        return self._result(call)

    def _alike(self, invocation: Invocation) -> PlainCalls | None:
        """Return the PlainCalls for *invocation*; None if it has to be made by itself. Those for options are
        made when the same are used again, because each call may have others."""
        task = invocation.task
        if task is None or before_task_publish.receivers or after_task_publish.receivers:
            return None
        fixed = fixed_options(invocation.options)
        if not fixed:
            return None if fixed is None else self._plain(task)
        derived, key = self._derive(), (task.name, fixed)
        plain = derived.alike.get(key, _UNUSED)
        if plain is not _UNUSED:
            return cast("PlainCalls | None", plain)
        if key not in derived.once:
            if len(derived.once) >= MOST_ALIKE:
                derived.once.clear()
                derived.alike.clear()
            derived.once.add(key)
            return None
        made = derived.alike[key] = plain_calls(self.app, derived.router, task, fixed)
        return made

    def _written(self, plain: PlainCalls, invocation: Invocation) -> tuple[Envelope, AsyncResult[Any]]:
        """Return the envelope and the result of *invocation*, written by *plain*."""
        _, name, args, kwargs, options = invocation
        due, expires = times_of(self.app, name, options, options.get("expires"))
        identity = task_id()
        root, parent = _root_and_parent(calling_context())
        envelope = plain.envelope(identity, args, kwargs, root, parent, due=due, expires=expires)
        return envelope, AsyncResult(identity, None, None, self.app, None, plain.queue, plain.ignored)

    def call_many(
        self, task: Task | None, calls: Iterable[Any], options: Mapping[str, Any]
    ) -> list[AsyncResult[Any]]:
        """Publish many calls at once, of *task*, or if it is None, of the tasks named in *calls*."""
        observed = before_task_publish.receivers or after_task_publish.receivers
        if task is not None and not options and not observed and not task.own_apply_async:
            plain = self._plain(task)
            if plain is not None:
                return self._call_many_plain(task, plain, calls)
        if options.get("task_id") is not None:
            raise PublishError("task_id cannot be shared by several calls: set it in the signature of each")
        ready: list[Envelope | _Ready] = []
        read = (read_call(self.app, task, item) for item in calls)
        answers = [self._enter(ready, invocation, options) for invocation in read]
        if ready:
            self._deliver(ready, "many calls" if task is None else task.name)
        return [answer() for answer in answers]

    def publish(self, calls: list[Signature], results: Mapping[str, AsyncResult[Any]]) -> None:
        """Publish calls of workflows, which have their ids, at once. The *results*, by id, get the queue of
        their call and whether the result is stored.

        The list is emptied, so that memory never holds both the signature and the message of each call.
        """
        observed = before_task_publish.receivers or after_task_publish.receivers
        members = MemberCalls(cache(self._plain_member), *_root_and_parent(calling_context()))
        ready: list[Envelope | _Ready] = []
        answers: list[Answer] = []
        calls.reverse()
        while calls:
            call = calls.pop()
            member = None if observed else members.envelope(call)
            if member is None:
                mark(call["options"], {RUN: run_in(call["options"].get("headers"))})
                answers.append(self._enter(ready, read_call(self.app, None, call), _OF_A_WORKFLOW))
                continue
            envelope, plain = member
            ready.append(envelope)
            result = results.get(call["options"]["task_id"])
            if result is not None:
                result.ignored, result._queue = plain.ignored, plain.queue
        if ready:
            self._deliver(ready)
        for answer in answers:
            sent = answer()
            result = results.get(sent.id)
            if result is not None:
                result.ignored, result._queue = sent.ignored, sent._queue

    def publish_next(self, call: Signature) -> bool:
        """Publish *call*, which has its id, after the running task. Return False if it must be made by
        ``apply_async``, because of its options or its task.

        Raises like apply_async.
        """
        context = calling_context()
        if context is None or before_task_publish.receivers or after_task_publish.receivers:
            return False
        member = MemberCalls(self._plain_member, context.root_id, context.id).envelope(call)
        if member is None:
            return False
        envelope, plain = member
        self.push((envelope,), call["task"])
        result: AsyncResult[Any] = AsyncResult(
            call["options"]["task_id"], None, None, self.app, None, plain.queue, plain.ignored
        )
        add_children(context, result)
        return True

    def plain_envelope(
        self,
        name: str,
        identity: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        headers: Mapping[str, str],
    ) -> Envelope | None:
        """Return the message of a call of the task *name* with only an id and *headers*; None if it has to be
        made like a call with options. Raises like a call of the task."""
        if before_task_publish.receivers or after_task_publish.receivers:
            return None
        plain = self._plain_member(name)
        if plain is None:
            return None
        more = "".join(f",{quote(header)}:{quote(text)}" for header, text in headers.items())
        envelope = plain.envelope(identity, args, kwargs, None, None, more)
        return envelope if len(envelope.body) <= self._looked_at() else None

    def _enter(
        self,
        ready: list[Envelope | _Ready],
        invocation: Invocation,
        options: Mapping[str, Any],
    ) -> Answer:
        """Add the message for *invocation*, one of many calls, to *ready*. Return a function for its result,
        to call after all are stored."""
        if options:
            invocation = invocation._replace(options={**invocation.options, **options})
        called, _, args, kwargs, _ = invocation
        if called is not None and called.own_apply_async:
            with holding_back(self.app) as held:
                result = called.apply_async(args, kwargs, **invocation.options)
            ready += held
            return partial(_same, result)
        if (alike := self._alike(invocation)) is not None:
            envelope, result = self._written(alike, invocation)
            ready.append(envelope)
            return partial(_recorded, result, invocation.options.get("add_to_parent"))
        call = self._make_call(invocation)
        if called is not None and self.app.conf.task_always_eager:
            return partial(_call_eagerly, called, call.message, invocation.options)
        self._through_middleware(call, partial(self._collect, ready, call))
        return partial(self._result, call)

    def _plain_member(self, name: str) -> PlainCalls | None:
        """Return the PlainCalls of the task *name* for calls in workflows; None if it has none."""
        task = self.app.tasks.get(name)
        return None if task is None or task.own_apply_async else self._plain(task)

    def _call_many_plain(self, task: Task, plain: PlainCalls, calls: Iterable[Any]) -> list[AsyncResult[Any]]:
        context = calling_context()
        root, parent = _root_and_parent(context)
        results: list[AsyncResult[Any]] = []
        ready: list[Envelope | _Ready] = []
        others: dict[int, Answer] = {}
        app, envelope, queue, ignored = self.app, plain.envelope, plain.queue, plain.ignored
        identities = task_ids()
        for item in calls:
            if type(item) is tuple:
                args, kwargs = item, _NO_KEYWORDS
            else:
                invocation = read_call(app, task, item)
                args, kwargs = invocation.args, invocation.kwargs
                if invocation.options:
                    others[len(results)] = self._enter(ready, invocation, {})
                    results.append(_UNUSED)
                    continue
            identity = next(identities)
            ready.append(envelope(identity, args, kwargs, root, parent))
            results.append(AsyncResult(identity, None, None, app, None, queue, ignored))
        if ready:
            self._deliver(ready, task.name)
        for number, result in enumerate(results) if others else ():
            answer = others.get(number)
            results[number] = _recorded(result, None) if answer is None else answer()
        if context is not None and not others:
            add_children(context, *results)
        return results

    def next_attempt(self, invocation: Invocation, request: Context) -> AsyncResult[Any]:
        """Publish the next attempt of *request*, the running attempt, with the same id and one more retry."""
        task, name, args, kwargs, given = invocation
        options = dict(given)
        identity, retries = options.pop("task_id", request.id), options.pop("retries", request.retries + 1)
        if (identity, retries) != (request.id, request.retries + 1):
            raise PublishError(f"calling {name}: task_id and retries of the next attempt cannot be changed")
        if task is not None:
            args, kwargs = task.dump_arguments(args, kwargs, options)
        check_options(self.app, name, options)
        invocation = Invocation(task, name, args, kwargs, options)
        call = make_call(self.app, self._derive().router, invocation, request)
        self._through_middleware(
            call, lambda message: self._deliver([self._prepare(call, message)], call.message.task)
        )
        return AsyncResult(call.message.id, None, None, self.app, None, call.destination.queue)

    def check_later(self, name: str, options: Mapping[str, Any]) -> None:
        """Raise the error that a later call of the task *name* with the *options* of a signature would raise,
        because later there is no caller to report it to."""
        given = {key: value for key, value in options_of_call(options).items() if key not in _OF_OTHERS}
        check_options(self.app, name, given)
        router = self._derive().router.without_functions()
        # By name, because the task's code must not see incomplete arguments.
        call = make_call(self.app, router, Invocation(None, name, (), {}, {"reply_to": "", **given}))
        encode(replace(call.message, headers={**call.message.headers, **call.marks}))

    # -- the steps --

    def forget(self) -> None:
        """Discard the values derived from settings and middlewares; the next call derives them again."""
        self._derived = None

    def _derive(self) -> _Derived:
        """Derive values from the current settings."""
        conf, derived = self.app.conf, self._derived
        if derived is None or derived.revision is not conf.revision:
            conf.resolve()
            # Read first, so that the next call notices a change in the meantime.
            revision = conf.revision
            derived = self._derived = _Derived(revision, Router(conf), {}, {}, set())
        return derived

    def _plain(self, task: Task) -> PlainCalls | None:
        derived = self._derive()
        try:
            return derived.plain[task.name]
        except KeyError:
            plain = derived.plain[task.name] = plain_calls(self.app, derived.router, task)
            return plain

    def _make_call(self, invocation: Invocation) -> Call:
        task, name, args, kwargs, options = invocation
        check_options(self.app, name, options)
        if task is not None and task.typing and task.check_arguments is not None:
            task.check_arguments(*args, **kwargs)
        if task is not None:
            args, kwargs = task.dump_arguments(args, kwargs, options)
            invocation = Invocation(task, name, args, kwargs, options)
        return make_call(self.app, self._derive().router, invocation)

    def _through_middleware(self, call: Call, final: Callable[[TaskMessage], Any]) -> None:
        compose(self.app.middleware, "publish", final)(call.message)

    def _prepare(self, call: Call, message: TaskMessage) -> _Ready:
        """Make the envelope of *message*, and send before_task_publish, whose receivers may add headers."""
        signer = self.app.signer
        if call.marks or not MARKS.isdisjoint(message.headers):
            message = replace(message, headers={**unmarked(message.headers), **call.marks})
        encoded = encode(message, signer, self.app.conf.message_max_bytes)
        if before_task_publish.receivers:
            headers, properties = parse_headers(encoded.headers), parse_properties(encoded.properties)
            headers.pop("signature", None)
            marks, headers = marks_in(headers), dict(unmarked(headers))
            before_task_publish.send(
                message.task,
                body=(
                    message.args,
                    message.kwargs,
                    {"callbacks": message.callbacks, "errbacks": message.errbacks},
                ),
                exchange=call.destination.exchange,
                routing_key=call.destination.routing_key,
                headers=headers,
                properties=properties,
                declare=[],
                retry_policy=self.app.conf.task_publish_retry_policy,
            )
            encoded = encode_parts({**headers, **marks}, properties, encoded.body, signer)
        envelope = Envelope(
            call.destination.queue,
            encoded.headers,
            encoded.properties,
            encoded.body,
            message.priority,
            call.due,
            call.expires,
        )
        return envelope, encoded, call

    def _collect(self, ready: list[Envelope | _Ready], call: Call, message: TaskMessage) -> None:
        ready.append(self._prepare(call, message))

    def _deliver(self, ready: Sequence[Envelope | _Ready], name: str = "many calls") -> None:
        """Push all of *ready* at once, in order, with the retry options of the first call that has any, and
        send after_task_publish, but not for a plain Envelope, which has none. name: of the task, for
        errors."""
        made = [each for each in ready if not isinstance(each, Envelope)]
        calls = (call for _, _, call in made if call is not None)
        retried = next((call for call in calls if call.retry is not None or call.retry_policy), None)
        policy = () if retried is None else (retried.retry, retried.retry_policy)
        self.push([each if isinstance(each, Envelope) else each[0] for each in ready], name, *policy)
        if after_task_publish.receivers:
            for _, encoded, call in made:
                if encoded is None or call is None:  # the signal was sent already
                    continue
                after_task_publish.send(
                    call.message.task,
                    headers=unmarked(parse_headers(encoded.headers)),
                    body=(call.message.args, call.message.kwargs, {}),
                    exchange=call.destination.exchange,
                    routing_key=call.destination.routing_key,
                )

    def push(
        self,
        envelopes: list[Envelope] | tuple[Envelope, ...],
        name: str,
        retry: bool | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Push *envelopes* to the broker. While it is unavailable, retry until one common deadline.

        - name: of the task, for the error.
        - retry (bool), policy (mapping): from the call; None for the settings.
        """
        conf = self.app.conf
        large = self._looked_at()
        for envelope in envelopes:
            if len(envelope.body) > large:
                self._check_size(max(len(each.body) for each in envelopes), name)
                break
        push, timeout, clock = sender(self.app).push, conf.task_publish_timeout, self.app.clock
        deadline = clock.monotonic() + timeout
        try:
            deferred(push, envelopes, timeout)
            return
        except BrokerUnavailable as error:
            reraise_interrupt(error)
            if not (conf.task_publish_retry if retry is None else retry):
                raise
            failure = error
        retries = RetryPolicy.from_mapping({**conf.task_publish_retry_policy, **(policy or {})})
        attempt = 0
        while retries.allows(attempt):
            pause = retries.delay(attempt, RANDOM.random)
            left = deadline - clock.monotonic() - pause
            if left <= 0:
                break
            clock.sleep(pause)
            try:
                deferred(push, envelopes, left)
                return
            except BrokerUnavailable as error:
                reraise_interrupt(error)
                failure = error
            attempt += 1
        raise failure

    def _looked_at(self) -> int:
        """Return the size in bytes above which bodies are checked."""
        conf = self.app.conf
        return min(conf.message_warn_bytes, conf.message_max_bytes)

    def _check_size(self, size: int, name: str) -> None:
        check_size(f"a call of {name}", size, self.app.conf.message_max_bytes)
        logger.warning(
            "a call of %s takes %d bytes: consider storing the data and passing its key", name, size
        )

    def _result(self, call: Call) -> AsyncResult[Any]:
        message = call.message
        result: AsyncResult[Any] = AsyncResult(
            message.id, None, None, self.app, None, call.destination.queue, bool(message.ignore_result)
        )
        return _recorded(result, call.add_to_parent)


def _recorded(result: AsyncResult[Any], add_to_parent: bool | None) -> AsyncResult[Any]:
    """Record *result* as a child of the calling task, unless add_to_parent is False; return it."""
    context = calling_context()
    if context is not None and add_to_parent is not False:
        add_children(context, result)
    return result


def _root_and_parent(context: Context | None) -> tuple[str | None, str | None]:
    """Return the ids of the root and the parent of calls made in *context*; Nones outside of tasks."""
    return (None, None) if context is None or context.id is None else (context.root_id, context.id)


def _same(result: AsyncResult[Any]) -> AsyncResult[Any]:
    return result


def _call_eagerly(task: Task, message: TaskMessage, options: Mapping[str, Any]) -> AsyncResult[Any]:
    """Run the call of *message* in this process, for ``task_always_eager``. Its arguments are serialized as
    usual."""
    encoded = encode(message)
    args, kwargs, _ = decode_body(
        encoded.body,
        parse_headers(encoded.headers),
        parse_properties(encoded.properties),
        content_types([message.serializer]),
        limit=task.app.conf.message_max_bytes,
    )
    result: AsyncResult[Any] = task.apply(args, kwargs, **{**options, "task_id": message.id})
    return result


__all__ = ["Destination", "Publisher"]
