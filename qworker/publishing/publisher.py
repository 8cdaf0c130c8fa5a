"""Publisher: turns calls into messages, and gives them to the broker.

Comes from:  ``task.delay``, ``apply_async``, ``apply_many``, ``retry``; ``app.send_task``, ``send_many``.
Goes to:     routing, protocol, middleware and signals, then ``LeaseStore.push``.
Thread:      any; what is kept between calls is replaced whole, never changed.

A call without options, middleware or observers takes the short way: its headers come from a template that was
made at the first call of the task.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.context import Context, current_context
from qworker.errors import BrokerUnavailable, PublishError
from qworker.interrupts import deferred, let_pass
from qworker.message.protocol import (
    HeaderTemplate,
    TaskMessage,
    Wire,
    encode,
    parse_headers,
    parse_properties,
    rewire,
)
from qworker.middleware import compose, overrides
from qworker.naming import task_id, task_ids
from qworker.publishing.call import Call, check_options, make_call, next_call, read_call
from qworker.publishing.retry import RetryPolicy
from qworker.publishing.routing import Destination, Router
from qworker.publishing.transactions import holding_back, sink
from qworker.results.result import AsyncResult
from qworker.signals import after_task_publish, before_task_publish
from qworker.tasks.eager import call_eagerly
from qworker.transports.lease import Envelope

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

logger = logging.getLogger(__name__)

_NO_KEYWORDS: dict[str, Any] = {}
_NEVER = object()  # equals no resolution of the settings, not even the one that is still to be made


_Ready = tuple[Envelope, Wire | None, Call | None]
"""What is to be sent; with how it was made, unless that was told to its observers already."""


class _Plan(NamedTuple):
    """All that is the same for each plain call of a task. short: nothing asks for the long way."""

    short: bool
    queue: str
    priority: int
    ignored: bool
    template: HeaderTemplate | None
    check: Callable[..., None] | None


class Publisher:
    """Publishes for one app; see the module."""

    def __init__(self, app: QWorker) -> None:
        self.app = app
        self._resolution: Any = _NEVER
        self._plans: dict[str, _Plan] = {}
        self._router: Router | None = None

    # -- calls --

    def call(self, task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncResult[Any]:
        """Publish a call without options."""
        app = self.app
        # The settings put a new resolution in place whenever one of them changes.
        if app.conf._resolution is not self._resolution:
            self.renew()
        plan = self._plans.get(task.name) or self._make_plan(task)
        if not plan.short or before_task_publish.receivers or after_task_publish.receivers:
            return self.call_with(task, task.name, args, kwargs, {})
        if plan.check is not None:
            plan.check(*args, **kwargs)
        identity = task_id()
        context = current_context()
        if context is None or context.id is None:
            wire = plan.template.wire(identity, args, kwargs)  # type: ignore[union-attr]
        else:
            wire = plan.template.wire(identity, args, kwargs, context.root_id, context.id)  # type: ignore[union-attr]
        self._push(
            (Envelope(plan.queue, wire.headers, wire.properties, wire.body, plan.priority),), task.name
        )
        result: AsyncResult[Any] = AsyncResult(identity, app, None, plan.queue, plan.ignored)
        if context is not None and task.trail:
            context.children.append(result)
        return result

    def call_with(
        self,
        task: Task[..., Any] | None,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
    ) -> AsyncResult[Any]:
        """Publish a call with options; *task* is None when only its name is known."""
        call = self._make_call(task, name, args, kwargs, options)
        if task is not None and self.app.conf.task_always_eager:
            return call_eagerly(task, call.message, options)
        self._through_middleware(call, lambda message: self._deliver([self._prepare(call, message)]))
        return self._result(call, task)

    def call_many(
        self, task: Task[..., Any] | None, calls: Iterable[Any], options: dict[str, Any]
    ) -> list[AsyncResult[Any]]:
        """Publish many calls at once: of *task*, or (None) of those that the calls name."""
        if self.app.conf._resolution is not self._resolution:
            self.renew()
        observed = before_task_publish.receivers or after_task_publish.receivers
        if task is not None and not options and not observed and not task.own_apply_async:
            plan = self._plans.get(task.name) or self._make_plan(task)
            if plan.short:
                return self._call_many_plain(task, plan, calls)
        if options.get("task_id") is not None:
            raise PublishError("task_id is for one call: give each its own, in signatures")
        eager = self.app.conf.task_always_eager
        ready: list[_Ready] = []
        answers: list[Callable[[], AsyncResult[Any]]] = []  # asked once all are stored
        for item in calls:
            one, name, args, kwargs, own = read_call(self.app, task, item)
            asked = {**own, **options}
            if one is not None and one.own_apply_async:
                with holding_back(self.app) as held:
                    made = one.apply_async(args, kwargs, **asked)
                ready += [(envelope, None, None) for envelope in held]
                answers.append(partial(_same, made))
                continue
            call = self._make_call(one, name, args, kwargs, asked)
            if eager and one is not None:
                answers.append(partial(call_eagerly, one, call.message, asked))
                continue
            self._through_middleware(call, partial(self._collect, ready, call))
            answers.append(partial(self._result, call, one))
        if ready:
            self._deliver(ready)
        return [answer() for answer in answers]

    def _call_many_plain(
        self, task: Task[..., Any], plan: _Plan, calls: Iterable[Any]
    ) -> list[AsyncResult[Any]]:
        app, queue, check, ignored = self.app, plan.queue, plan.check, plan.ignored
        make = plan.template.wire  # type: ignore[union-attr]
        context = current_context()
        root, parent = (
            (None, None) if context is None or context.id is None else (context.root_id, context.id)
        )
        results: list[AsyncResult[Any]] = []
        children: list[AsyncResult[Any]] = []
        envelopes: list[Envelope] = []
        identities = task_ids()
        for item in calls:
            if type(item) is tuple:
                args, kwargs = item, _NO_KEYWORDS
            else:
                _, _, args, kwargs, options = read_call(self.app, task, item)
                if options:
                    call = self._make_call(task, task.name, args, kwargs, options)
                    envelopes.append(self._prepare(call, call.message)[0])
                    results.append(self._result(call, task))
                    continue
            if check is not None:
                check(*args, **kwargs)
            identity = next(identities)
            wire = make(identity, args, kwargs, root, parent)
            envelopes.append(Envelope(queue, wire.headers, wire.properties, wire.body, plan.priority))
            result: AsyncResult[Any] = AsyncResult(identity, app, None, queue, ignored)
            results.append(result)
            children.append(result)
        if envelopes:
            self._push(envelopes, task.name)
        if context is not None and task.trail:
            context.children.extend(children)
        return results

    def next_attempt(
        self,
        task: Task[..., Any],
        request: Context,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
    ) -> AsyncResult[Any]:
        """Publish the next attempt of the running task: same id, one retry more."""
        identity, retries = options.pop("task_id", request.id), options.pop("retries", request.retries + 1)
        if (identity, retries) != (request.id, request.retries + 1):
            raise PublishError(f"calling {task.name}: only self.retry() counts retries")
        if task.dump_arguments is not None:
            args, kwargs = task.dump_arguments(args, kwargs)
        if self.app.conf._resolution is not self._resolution:
            self.renew()
        check_options(self.app, task.name, options)
        call = next_call(self._router, task, request, args, kwargs, options, self.app)  # type: ignore[arg-type]
        self._through_middleware(call, lambda message: self._deliver([self._prepare(call, message)]))
        return AsyncResult(call.message.id, self.app, None, call.destination.queue)

    # -- the steps --

    def renew(self) -> None:
        """Forget what was derived from the settings and the middlewares."""
        conf = self.app.conf
        resolution = conf._resolution  # looked at first: what changes meanwhile is seen at the next call
        self._router = Router(conf)
        self._plans = {}
        self._resolution = resolution

    def forget(self) -> None:
        """Forget it when the next call is made, and look at nothing now."""
        self._resolution = _NEVER

    def _make_plan(self, task: Task[..., Any]) -> _Plan:
        app = self.app
        router = self._router
        assert router is not None
        short = (
            router.constant
            and not app.conf.task_always_eager
            and not app.conf.task_inherit_parent_priority
            and app.signer is None
            and app.conf.result_backend != "rpc://"
            and task.expires is None
            and not task.renames
            and task.dump_arguments is None
            and not any(overrides(middleware, "publish") for middleware in app.middleware)
        )
        plan = _Plan(False, "", 0, False, None, None)
        if short:
            call = make_call(router, task, task.name, (), {}, {}, app)
            template = HeaderTemplate(call.message, self.app.conf.message_max_bytes)
            check = task.check_arguments if task.typing else None
            target = call.destination
            plan = _Plan(True, target.queue, target.priority, call.message.ignore_result, template, check)
        self._plans = {**self._plans, task.name: plan}
        return plan

    def _make_call(
        self,
        task: Task[..., Any] | None,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
    ) -> Call:
        if self.app.conf._resolution is not self._resolution:
            self.renew()
        check_options(self.app, name, options)
        if task is not None and task.typing and task.check_arguments is not None:
            task.check_arguments(*args, **kwargs)
        if task is not None and task.dump_arguments is not None:
            args, kwargs = task.dump_arguments(args, kwargs)
        return make_call(self._router, task, name, args, kwargs, options, self.app)  # type: ignore[arg-type]

    def _through_middleware(self, call: Call, final: Callable[[TaskMessage], Any]) -> None:
        compose(self.app.middleware, "publish", final)(call.message)

    def _prepare(self, call: Call, message: TaskMessage) -> _Ready:
        """The envelope of *message*, after its observers have seen it; they may add to its headers."""
        signer = self.app.signer
        wire = encode(message, signer, self.app.conf.message_max_bytes)
        if before_task_publish.receivers:
            headers, properties = parse_headers(wire.headers), parse_properties(wire.properties)
            headers.pop("signature", None)
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
            wire = rewire(headers, properties, wire.body, signer)
        envelope = Envelope(
            call.destination.queue,
            wire.headers,
            wire.properties,
            wire.body,
            message.priority,
            call.due,
            call.expires,
        )
        return envelope, wire, call

    def _collect(self, ready: list[_Ready], call: Call, message: TaskMessage) -> None:
        ready.append(self._prepare(call, message))

    def _deliver(self, ready: list[_Ready]) -> None:
        calls = [call for _, _, call in ready if call is not None]
        policy = (calls[0].message.task, calls[0].retry, calls[0].retry_policy) if calls else ("many calls",)
        self._push([envelope for envelope, _, _ in ready], *policy)
        if after_task_publish.receivers:
            for _, wire, one in ready:
                if wire is None or one is None:  # told of already
                    continue
                after_task_publish.send(
                    one.message.task,
                    headers=parse_headers(wire.headers),
                    body=(one.message.args, one.message.kwargs, {}),
                    exchange=one.destination.exchange,
                    routing_key=one.destination.routing_key,
                )

    def _push(
        self,
        envelopes: list[Envelope] | tuple[Envelope, ...],
        name: str,
        retry: bool | None = None,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Give *envelopes* to the broker; try again, all within one deadline, while it cannot be reached."""
        conf = self.app.conf
        largest = max([len(envelope.body) for envelope in envelopes])
        if largest > conf.message_warn_bytes:
            self._check_size(largest, name)
        store, timeout, clock = sink(self.app), conf.task_publish_timeout, self.app.clock
        deadline = clock.monotonic() + timeout
        try:
            deferred(store.push, envelopes, timeout)
            return
        except BrokerUnavailable as error:
            let_pass(error)
            if not (conf.task_publish_retry if retry is None else retry):
                raise
            patience = RetryPolicy.from_mapping({**conf.task_publish_retry_policy, **(policy or {})})
            if not patience.allows(0):
                raise
        attempt = 0
        while True:
            pause = patience.delay(attempt, random.random)
            left = deadline - clock.monotonic() - pause
            final = left <= 0 or not patience.allows(attempt + 1)
            clock.sleep(max(0.0, min(pause, deadline - clock.monotonic())))
            try:
                deferred(store.push, envelopes, max(left, 0.05))
                return
            except BrokerUnavailable as error:
                let_pass(error)
                if final:
                    raise
            attempt += 1

    def _check_size(self, size: int, name: str) -> None:
        limit = self.app.conf.message_max_bytes
        if size > limit:
            raise PublishError(
                f"a call of {name} takes {size:,} bytes, over the limit of {limit:,} (message_max_bytes): "
                "store the data somewhere and pass its key"
            )
        logger.warning(
            "a call of %s takes %d bytes: consider storing the data and passing its key", name, size
        )

    def _result(self, call: Call, task: Task[..., Any] | None) -> AsyncResult[Any]:
        message = call.message
        result: AsyncResult[Any] = AsyncResult(
            message.id, self.app, None, call.destination.queue, message.ignore_result
        )
        context = current_context()
        if context is not None and call.add_to_parent and (task is None or task.trail):
            context.children.append(result)
        return result


def _same(result: AsyncResult[Any]) -> AsyncResult[Any]:
    return result


__all__ = ["Destination", "Publisher"]
