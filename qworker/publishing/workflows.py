"""Workflows: opens the joins of workflows, and publishes their calls, in one round trip each.

Comes from:  ``apply_async`` and ``delay`` of chains, groups and chords; ``send_many``; calls after a task.
Goes to:     the result store, which keeps joins, and the publisher.
Thread:      any.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from qworker.backends.joins import Join, Opening
from qworker.canvas.plan import SEGMENT, Plan, all_in, plan
from qworker.canvas.signatures import Signature, is_workflow
from qworker.contracts import App
from qworker.errors import BackendError, EncodeError, NotSupported, PublishError
from qworker.message.context import add_children, calling_context
from qworker.message.marks import MARKS
from qworker.message.reading import valid_id
from qworker.process.crash_points import crash_point
from qworker.publishing.bodies import written
from qworker.publishing.call import read_call
from qworker.publishing.plain_calls import PLANNED
from qworker.publishing.transactions import is_sent_later, transaction_of
from qworker.results import outline

logger = logging.getLogger(__name__)

_OF_REDIS = frozenset(["redis", "rediss", "valkey", "valkeys", "unix", "sentinel"])
_BROKERS_OF_CELERY = _OF_REDIS | {"amqp", "amqps", "pyamqp", "sqs", "kombu"}


def send_workflow(
    app: App,
    signature: Signature,
    args: Iterable[Any] | None,
    kwargs: Mapping[str, Any] | None,
    options: Mapping[str, Any] | None,
) -> Any:
    """Send a workflow; return its result. See ``QWorker.send_workflow``."""
    if app.conf.task_always_eager:
        return signature.apply(args, kwargs, **(options or {}))
    (result,) = _called(app, [planned(app, signature, args, kwargs, options)])
    return result


def _called(app: App, plans: list[Plan]) -> list[Any]:
    """Carry out *plans* of independent workflows; return the result of each."""
    for made in plans:
        check_later(app, made)
    _open(app, plans)
    lines = _outlines(app, plans)
    _publish(app, plans)
    _keep_outlines(app, lines)
    return [made.result for made in plans]


def planned(
    app: App,
    signature: Signature,
    args: Iterable[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> Plan:
    """Return the plan of *signature*, in the format of the settings. Arguments and errors are those of
    plan()."""
    if not app.finalized:  # the tasks are not registered yet
        app.finalize()
    shared = app.shared_canvas
    segment = SEGMENT if shared and _joins(app) else None
    return plan(signature, args, kwargs, options, shared=shared, segment=segment, app=app, run=run)


def check_later(app: App, made: Plan) -> None:
    """Raise PublishError for invalid options in the plan *made*, because later there is no caller to report
    them to."""
    if made.step is None:
        return
    for each in all_in(made.step):
        options = each["options"]
        if not options.keys() <= PLANNED or not _are_settled(options):
            app.publisher.check_later(each["task"], options)


def _are_settled(options: Mapping[str, Any]) -> bool:
    """Return whether a plan has set all *options*, so that they need no further check."""
    headers = options.get("headers")
    if headers and (not isinstance(headers, Mapping) or not headers.keys() <= MARKS):
        return False
    return all(name not in options or valid_id(options[name]) for name in ("task_id", "root_id", "group_id"))


def _joins(app: App) -> bool:
    """Return whether the result store supports joins."""
    try:
        return bool(app.backend.joins)
    except NotSupported:
        return False


def start(app: App, made: Plan) -> Any:
    """Carry out a plan; return the result of the workflow."""
    started(app, [made])
    return made.result


def send_many(app: App, calls: Iterable[Any], options: Mapping[str, Any]) -> list[Any]:
    """Send many calls, some of them workflows, in one round trip; return the result of each."""
    items = list(calls)
    results: list[Any]
    if not any(map(is_workflow, items)):
        results = app.publisher.call_many(None, items, options)
        return results
    if app.conf.task_always_eager:
        return [
            each.apply(**options) if is_workflow(each) else app.publisher.call_many(None, [each], options)[0]
            for each in items
        ]
    return _called(app, [planned(app, _signature(app, each), options=options) for each in items])


def _signature(app: App, item: Any) -> Signature:
    if isinstance(item, Signature):
        return item
    _, name, args, kwargs, options = read_call(app, None, item)
    return Signature(name, args, kwargs, options, app=app)


def started(app: App, plans: list[Plan]) -> None:
    """Open the joins of *plans*, and publish all their calls at once."""
    _open(app, plans)
    _publish(app, plans)


def _open(app: App, plans: list[Plan]) -> None:
    backend = app.backend
    for made in plans:
        refuse_ignored(app, made.joined)
        # Raise if joins are not supported, also for a chord that a worker starts later. If results are
        # disabled here, the workers' setting is unknown.
        if made.joined and _scheme(backend.url) != "disabled":
            _ = backend.joins
    for made in plans:
        for group, size in made.sizes.items():
            backend.joins.set_size(group, size, made.run, made.delays.get(group, 0.0))
    joins = [(join, made.delays.get(join.id, 0.0)) for made in plans for join in made.joins]
    if joins:
        opening, tentative = _opening(app)
        opening.open(
            [
                Join(
                    join.id,
                    len(join.members),
                    written(app, join, tentative),
                    backend.expiry(join.terms, delay),
                )
                for join, delay in joins
            ]
        )
    crash_point("joins-opened")


def _opening(app: App) -> tuple[Opening, bool]:
    """Return the object that opens joins now, and whether they may exist without their members, because the
    members are sent in the caller's transaction, which is in another store."""
    joins, transaction = app.backend.joins, transaction_of(app)
    within = None if transaction is None else joins.within(transaction)
    return within or joins, transaction is not None and within is None


def _publish(app: App, plans: list[Plan]) -> None:
    calls = []
    for made in plans:
        calls += made.calls
        for those in (made.calls, made.joined):
            those.clear()  # see publish()
    results: dict[str, Any] = {}
    for made in plans:
        if made.first is not None:
            results.update((each.id, each) for each in getattr(made.first, "results", None) or (made.first,))
    try:
        if calls:
            app.publisher.publish(calls, results)
    except PublishError:
        joins = [join.id for made in plans for join in made.joins]
        if joins:  # nothing was sent
            _opening(app)[0].drop(joins)
        raise
    crash_point("calls-sent")
    context = calling_context()
    if context is not None:
        add_children(
            context, *(made.first for made in plans if made.first is not None and made.add_to_parent)
        )


def _outlines(app: App, plans: list[Plan]) -> list[tuple[outline.Line, int]]:
    """Return the outlines of the workflows in *plans*, and how many seconds longer each is kept.

    The structure is removed from the plans, so that their calls are released as they are published.
    """
    steps = [made.step for made in plans]
    plans[:] = [made._replace(step=None) for made in plans]
    if not app.backend.supports_locks or is_sent_later(app):
        return []
    extended, lines = app.conf.result_extended, []
    for made, step in zip(plans, steps, strict=True):
        if step is None or (step["subtask_type"] == "group" and not extended):
            continue
        line = outline.outlined(step, lambda call: call.ignored(app))
        if extended or made.joins or outline.has_joins(line):
            lines.append((line, made.kept))
    return lines


def _keep_outlines(app: App, lines: list[tuple[outline.Line, int]]) -> None:
    """Store the outlines *lines*, after the calls were sent. Only progress queries need them, so a failure to
    store them is not an error."""
    context = calling_context()
    parent = None if context is None else context.id
    for line, kept in lines:
        try:
            outline.keep(app.backend, line, parent, kept)
        except (BackendError, EncodeError) as error:
            logger.debug("the outline of workflow %s is not kept: %s", line[-1][0], error)


def refuse_ignored(app: App, joined: Iterable[Signature]) -> None:
    """Raise PublishError if the result of one of *joined*, for which a chord or graph waits, is ignored."""
    for call in joined:
        if call.ignored(app):
            raise PublishError(
                f"the result of {call['task']} is ignored, but a chord or graph waits for it: call it with "
                ".set(ignore_result=False), or use a group without a body"
            )


def shares_joins(app: App) -> bool:
    """Return whether joins are written in a format that only qworker's workers read; see
    ``canvas_format``."""
    chosen = app.conf.canvas_format
    if chosen != "auto":
        return bool(chosen == "shared")
    if app.conf.security_key is not None:  # Celery's workers do not support the key
        return True
    return _scheme(app.broker.url) not in _BROKERS_OF_CELERY or _scheme(app.backend.url) not in _OF_REDIS


def _scheme(url: str | None) -> str:
    scheme = (url or "").partition("://")[0].lower()
    return scheme if scheme.endswith("+cluster") else scheme.partition("+")[0]  # Celery has none for clusters
