"""The options of one call, and the message they make.

Comes from:  publishing, with what the user gave to apply_async.
Goes to:     a Call: the frozen TaskMessage, where it goes and when it is due.
Thread:      any; pure but for the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.canvas.signature import Signature, signatures
from qworker.clock import from_epoch, isoformat, seconds, to_epoch_in
from qworker.context import Context, current_context
from qworker.errors import ConfigurationError, PublishError
from qworker.message.protocol import TaskMessage, retry_headers
from qworker.message.reading import HEADERS
from qworker.naming import near, task_id
from qworker.publishing.arguments import keywords, positional
from qworker.publishing.connections import HANDED_IN, refuse_other_brokers
from qworker.publishing.retry import RetryPolicy
from qworker.publishing.routing import Destination, Router

if TYPE_CHECKING:
    from qworker.app import QWorker
    from qworker.tasks.task import Task

OPTIONS = frozenset(
    [
        "task_id",
        "countdown",
        "eta",
        "expires",
        "queue",
        "exchange",
        "routing_key",
        "priority",
        "headers",
        "serializer",
        "compression",
        "ignore_result",
        "retry",
        "retry_policy",
        "shadow",
        "time_limit",
        "soft_time_limit",
        "link",
        "link_error",
        "root_id",
        "parent_id",
        "group_id",
        "group_index",
        "chord",
        "chain",
        "reply_to",
        "add_to_parent",
        "argsrepr",
        "kwargsrepr",
        "replaced_task_nesting",
        "stamped_headers",
        "stamps",
    ]
)
"""What apply_async, send_task and retry take."""

FOR_CELERYS_SAKE = frozenset(
    [
        "router",
        "delivery_mode",
        "mandatory",
        "immediate",
        "exchange_type",
        "declare",
    ]
)
"""Options that are accepted and mean nothing here."""


class Call(NamedTuple):
    """A call on its way to the broker. due and expires are epoch seconds."""

    message: TaskMessage
    destination: Destination
    due: float | None
    expires: float | None
    retry: bool | None
    retry_policy: Mapping[str, Any] | None
    add_to_parent: bool


def check_options(app: QWorker, name: str, options: Mapping[str, Any]) -> None:
    """Raise PublishError for an option that does not exist, with the nearest spelling, or for another app's
    connection."""
    for option in options:
        if option in HANDED_IN:
            refuse_other_brokers(app, name, option, options[option])
        elif (
            option not in OPTIONS
            and option not in FOR_CELERYS_SAKE
            and option not in app.middleware_options()
        ):
            guesses = near(option, [*OPTIONS, *app.middleware_options()])
            hint = f" Did you mean {' or '.join(guesses)}?" if guesses else ""
            raise PublishError(f"calling {name}: there is no option {option!r}.{hint}")


def read_call(
    app: QWorker, task: Task[..., Any] | None, item: Any
) -> tuple[Task[..., Any] | None, str, tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """(task, name, args, kwargs, options) of one item given to apply_many or send_many."""
    if isinstance(item, Signature):
        if task is not None and item.task != task.name:
            raise PublishError(f"{task.name}.apply_many was given a call of {item.task}: use app.send_many")
        one = task or app.tasks.get(item.task)
        return one, item.task, item.args, item.kwargs, item.options
    if task is None:
        if isinstance(item, str):
            return None, item, (), {}, {}
        if isinstance(item, tuple | list) and 1 <= len(item) <= 3 and isinstance(item[0], str):
            name, args, kwargs = (*item, (), {})[:3] if len(item) < 3 else item
            return None, name, positional(name, args), keywords(name, kwargs), {}
    elif isinstance(item, tuple | list):
        return task, task.name, tuple(item), {}, {}
    elif isinstance(item, Mapping):
        return task, task.name, (), dict(item), {}
    expected = (
        "(name, args, kwargs)" if task is None else "a tuple of arguments, a mapping of keyword arguments"
    )
    raise PublishError(f"{item!r:.200} is no call: expected {expected}, or a signature")


def make_call(
    router: Router,
    task: Task[..., Any] | None,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    app: QWorker,
) -> Call:
    """Make the call of *task* (None: one only its name is known of). Raises PublishError for what cannot
    be."""
    _check_priority(name, options, app.conf.task_queue_max_priority)
    retry_policy = _retry_policy(name, options)

    def option(key: str) -> Any:
        value = options.get(key)
        if value is None and task is not None:
            value = getattr(task, key)
        return destination.options.get(key) if value is None else value

    asked = {
        key: options.get(key) or getattr(task, key, None) for key in ("queue", "exchange", "routing_key")
    }
    asked["priority"] = (
        options.get("priority") if options.get("priority") is not None else getattr(task, "priority", None)
    )
    context = current_context()
    if asked["priority"] is None and context is not None and app.conf.task_inherit_parent_priority:
        asked["priority"] = (context.delivery_info or {}).get("priority")
    destination = router.route(name, {**options, **asked}, args, kwargs, task)
    now = app.clock.now()
    due = _due(name, options, now, app.conf.timezone)
    expires = _moment(name, "expires", option("expires"), now, app.conf.timezone)
    parent = context if context is not None and context.id is not None else None
    shadow = options.get("shadow")
    if shadow is None and task is not None and task.renames:
        shadow = task.shadow_name(args, kwargs, dict(options))
    message = TaskMessage(
        task=name,
        id=options.get("task_id") or task_id(),
        args=args,
        kwargs=kwargs,
        callbacks=_signatures(name, options, "link"),
        errbacks=_signatures(name, options, "link_error"),
        chain=options.get("chain"),
        chord=options.get("chord"),
        eta=None if due is None else isoformat(due),
        expires=None if expires is None else isoformat(expires),
        shadow=shadow,
        group=options.get("group_id"),
        group_index=options.get("group_index"),
        timelimit=_limits(name, options),
        root_id=options.get("root_id") or (parent.root_id if parent else None),
        parent_id=options.get("parent_id") or (parent.id if parent else None),
        ignore_result=bool(option("ignore_result")),
        replaced_task_nesting=options.get("replaced_task_nesting") or 0,
        stamped_headers=options.get("stamped_headers"),
        stamps=options.get("stamps") or {},
        argsrepr=options.get("argsrepr"),
        kwargsrepr=options.get("kwargsrepr"),
        headers=_headers(name, options.get("headers")),
        reply_to=options.get("reply_to") or app.reply_to,
        priority=destination.priority,
        serializer=option("serializer") or app.conf.task_serializer,
        compression=option("compression"),
    )
    add_to_parent = bool(options.get("add_to_parent", True))
    return Call(message, destination, due, expires, options.get("retry"), retry_policy, add_to_parent)


def next_call(
    router: Router,
    task: Task[..., Any],
    request: Context,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Mapping[str, Any],
    app: QWorker,
) -> Call:
    """Make the next attempt of *request*: its id, root, group, chord, stamps, expiry and headers; one retry
    more."""
    _check_priority(task.name, options, app.conf.task_queue_max_priority)
    retry_policy = _retry_policy(task.name, options)
    now = app.clock.now()
    due = _due(task.name, options, now, app.conf.timezone)
    kept = retry_headers(request._headers, due, request.retries + 1, request.id)
    came_by = request.delivery_info or {}
    asked = {
        "queue": options.get("queue") or came_by.get("routing_key"),
        "priority": came_by.get("priority") if options.get("priority") is None else options["priority"],
    }
    if options.get("queue") is None and (options.get("routing_key") or options.get("exchange")):
        asked = {
            **asked,
            "queue": None,
            "exchange": options.get("exchange"),
            "routing_key": options.get("routing_key"),
        }
    destination = router.route(task.name, asked, args, kwargs, task)
    expires = _moment(
        task.name, "expires", options.get("expires") or kept.get("expires"), now, app.conf.timezone
    )
    stamps = kept.get("stamps") or {}
    custom = {key: value for key, value in kept.items() if key not in HEADERS and key not in stamps}
    custom.pop("compression", None)
    hard, soft = _limits(task.name, options)
    kept_hard, kept_soft = (*(kept.get("timelimit") or ()), None, None)[:2]
    message = TaskMessage(
        task=task.name,
        id=str(request.id),
        args=args,
        kwargs=kwargs,
        callbacks=_signatures(task.name, options, "link") or request.callbacks,
        errbacks=_signatures(task.name, options, "link_error") or request.errbacks,
        chain=request.chain,
        chord=request.chord,
        eta=kept["eta"],
        expires=None if expires is None else isoformat(expires),
        shadow=options.get("shadow") or kept.get("shadow"),
        group=kept.get("group"),
        group_index=kept.get("group_index"),
        retries=kept["retries"],
        timelimit=(hard or kept_hard, soft or kept_soft),
        root_id=kept.get("root_id"),
        parent_id=kept["parent_id"],
        ignore_result=bool(options.get("ignore_result", kept.get("ignore_result"))),
        replaced_task_nesting=kept.get("replaced_task_nesting") or 0,
        stamped_headers=kept.get("stamped_headers"),
        stamps=stamps,
        headers={**custom, **_headers(task.name, options.get("headers"))},
        reply_to=request.reply_to,
        priority=destination.priority,
        serializer=options.get("serializer") or task.serializer or app.conf.task_serializer,
        compression=options.get("compression") or task.compression,
    )
    return Call(message, destination, due, expires, options.get("retry"), retry_policy, False)


def _due(name: str, options: Mapping[str, Any], now: float, timezone: str) -> float | None:
    eta, countdown = options.get("eta"), options.get("countdown")
    if eta is not None:
        return _moment(name, "eta", eta, now, timezone)
    if countdown is None:
        return None
    try:
        length = countdown.total_seconds() if isinstance(countdown, timedelta) else float(countdown)
        if not math.isfinite(length):
            raise ValueError
        due = now + max(0.0, length)  # one that is over already is an ordinary call, not a mistake
        from_epoch(due)
    except (TypeError, ValueError):
        raise PublishError(
            f"calling {name}: countdown={countdown!r} must be a number of seconds (or a timedelta) that ends "
            "before the year 10000"
        ) from None
    return due


def _moment(name: str, key: str, value: Any, now: float, timezone: str) -> float | None:
    """Epoch seconds of an eta or expires: a datetime or ISO text is a moment, a number or timedelta is from
    now."""
    if value is None:
        return None
    try:
        if isinstance(value, datetime) or (isinstance(value, str) and ("T" in value or ":" in value)):
            moment = to_epoch_in(value, timezone)
        elif key == "eta":
            raise TypeError
        else:
            moment = now + seconds(value)
        from_epoch(moment)
    except (TypeError, ValueError, OverflowError):
        kinds = "a datetime or ISO 8601 text"
        kinds += "" if key == "eta" else ", or a number of seconds from now"
        raise PublishError(
            f"calling {name}: {key}={value!r} must be {kinds}, before the year 10000"
        ) from None
    return moment


def _limits(name: str, options: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """(hard, soft) as the call says; the one that it leaves out is the task's."""
    hard, soft = _limit(name, options, "time_limit"), _limit(name, options, "soft_time_limit")
    if soft is not None and hard is not None and soft > hard:
        raise PublishError(
            f"calling {name}: soft_time_limit ({soft:g} s) comes after time_limit ({hard:g} s): make "
            "it smaller"
        )
    return hard, soft


def _limit(name: str, options: Mapping[str, Any], key: str) -> float | None:
    value = options.get(key)
    if value is None:
        return None
    try:
        limit = seconds(value)
        if limit <= 0:
            raise ValueError
    except (TypeError, ValueError):
        raise PublishError(f"calling {name}: {key}={value!r} must be a number of seconds above 0") from None
    return limit


def _check_priority(name: str, options: Mapping[str, Any], highest: int) -> None:
    """Refuse a priority that a caller cannot mean. Those that come with a message are cut down by the
    router."""
    priority = options.get("priority")
    if priority is None:
        return
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority <= highest:
        raise PublishError(
            f"calling {name}: priority={priority!r} must be a whole number from 0 to {highest} (most urgent)"
        )


def _retry_policy(name: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    policy: Mapping[str, Any] | None = options.get("retry_policy")
    if policy is None:
        return None
    if not isinstance(policy, Mapping):
        raise PublishError(f"calling {name}: retry_policy={policy!r:.200} must be a mapping")
    try:
        RetryPolicy.from_mapping(policy)
    except ConfigurationError as error:
        raise PublishError(f"calling {name}: {error}") from None
    return policy


def _headers(name: str, headers: Any) -> Mapping[str, Any]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping) or not all(isinstance(key, str) for key in headers):
        raise PublishError(f"calling {name}: headers={headers!r:.200} must be a mapping with text as keys")
    return headers


def _signatures(name: str, options: Mapping[str, Any], key: str) -> list[Any] | None:
    if options.get(key) is None:
        return None
    try:
        return signatures(options[key], key) or None
    except TypeError as error:
        raise PublishError(f"calling {name}: {error}") from None
