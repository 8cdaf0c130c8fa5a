"""Call: makes the message of a call from its options.

Comes from:  publishing, with the arguments of apply_async.
Goes to:     a Call: the TaskMessage, its destination and its due time.
Thread:      any; pure except for the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from qworker.canvas.signatures import Signature, listed, signatures
from qworker.clock import from_epoch, isoformat, seconds, to_epoch_in
from qworker.contracts import App, Task
from qworker.errors import ConfigurationError, PublishError
from qworker.message.context import Context, calling_context, message_headers
from qworker.message.marks import MARKS, RUN, marks_in, names_ids, new_run, options_of_call, unmarked
from qworker.message.protocol import TaskMessage, retry_headers
from qworker.message.reading import HEADERS, MAX_ID, valid_id
from qworker.message.serialization import content_types
from qworker.naming import close_matches, task_id
from qworker.publishing.arguments import keywords, positional
from qworker.publishing.connections import HANDED_IN, refuse_other_brokers
from qworker.publishing.retry import RetryPolicy
from qworker.publishing.routing import Destination, Router
from qworker.safe_repr import repr_args, repr_kwargs

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
"""Options of apply_async, send_task and retry."""

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
"""Options that are accepted and have no effect."""


class Invocation(NamedTuple):
    """A call as requested.

    - task: None if it is not registered in this process.
    - options: those of apply_async.
    """

    task: Task | None
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: Mapping[str, Any]


class Call(NamedTuple):
    """A call ready for the broker.

    - message: without marks.
    - marks: internal headers, added last.
    - due, expires: epoch seconds.
    """

    message: TaskMessage
    marks: Mapping[str, Any]
    destination: Destination
    due: float | None
    expires: float | None
    retry: bool | None
    retry_policy: Mapping[str, Any] | None
    add_to_parent: bool


def check_options(app: App, name: str, options: Mapping[str, Any]) -> None:
    """Raise PublishError for an unknown option, with similar names, or a connection of another app."""
    for option in options:
        if option in HANDED_IN:
            refuse_other_brokers(app, name, option, options[option])
        elif (
            option not in OPTIONS
            and option not in FOR_CELERYS_SAKE
            and option not in MARKS
            and option not in listed(options.get("stamped_headers"))
            and option not in app.middleware_options()
        ):
            guesses = close_matches(option, [*OPTIONS, *app.middleware_options()])
            hint = f" Did you mean {' or '.join(guesses)}?" if guesses else ""
            raise PublishError(f"calling {name}: there is no option {option!r}.{hint}")


def tidied(app: App, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known *options* and stamps of a signature received in a message, with a valid priority.
    Celery's producers may add other options, and RabbitMQ has more priorities."""
    stamps = listed(options.get("stamped_headers"))
    known = {name: value for name, value in options.items() if name in OPTIONS or name in stamps}
    if isinstance(priority := known.get("priority"), int):
        known["priority"] = max(0, min(priority, app.conf.task_queue_max_priority))
    return known


def read_call(app: App, task: Task | None, item: Any) -> Invocation:
    """Return the call for one item passed to apply_many() of *task*, or to send_many() (None)."""
    if isinstance(item, Signature):
        if task is not None and item.task != task.name:
            raise PublishError(f"{task.name}.apply_many was given a call of {item.task}: use app.send_many")
        called = task or app.tasks.get(item.task)
        return Invocation(called, item.task, item.args, item.kwargs, options_of_call(item.options))
    if task is None:
        if isinstance(item, str):
            return Invocation(None, item, (), {}, {})
        if isinstance(item, tuple | list) and 1 <= len(item) <= 3 and isinstance(item[0], str):
            name, args, kwargs = (*item, (), {})[:3] if len(item) < 3 else item
            return Invocation(None, name, positional(name, args), keywords(name, kwargs), {})
    elif isinstance(item, tuple | list):
        return Invocation(task, task.name, tuple(item), {}, {})
    elif isinstance(item, Mapping):
        return Invocation(task, task.name, (), dict(item), {})
    expected = (
        "(name, args, kwargs)" if task is None else "a tuple of arguments, a mapping of keyword arguments"
    )
    raise PublishError(f"{item!r:.200} is not a call: expected {expected}, or a signature")


def make_call(app: App, router: Router, invocation: Invocation, request: Context | None = None) -> Call:
    """Make the call of *invocation*. Raises PublishError for invalid options.

    - request: None for a new call; the running attempt for its next attempt, which keeps the id, the root,
      the group, the chord, the stamps, the expiry and the headers.
    """
    task, name, args, kwargs, options = invocation
    check_priority(name, options, app.conf.task_queue_max_priority)
    retry_policy = _retry_policy(name, options)
    if request is None:
        marks, defaults = _first_marks(options), _first_defaults(app, task)
    else:
        marks = marks_in(message_headers(request))
        if not _KEPT.isdisjoint(options):
            options = {key: value for key, value in options.items() if key not in _KEPT}
        defaults = _next_defaults(request, task, options)
    chosen = {**defaults, **{key: value for key, value in options.items() if value is not None}}
    for key in _ADDRESS:  # always present for route functions
        chosen[key] = options.get(key) or defaults.get(key)
    chosen.setdefault("priority", None)
    destination = router.route(_routed_as(name, kwargs), chosen, args, kwargs, task)
    if destination.options:
        for key in _OF_ROUTE & destination.options.keys():
            chosen.setdefault(key, destination.options[key])
    due, expires = times_of(app, name, options, chosen.get("expires"))
    if "shadow" not in chosen and task is not None and task.renames:
        chosen["shadow"] = task.shadow_name(args, kwargs, dict(options))
    if request is None and "reply_to" not in chosen:
        chosen["reply_to"] = _reply_to(app, task, chosen)
    hard, soft = limits_of(name, options)
    if request is None:
        _check_readable(app, name, chosen)
    ignored = chosen.get("ignore_result")
    message = TaskMessage(
        task=name,
        id=chosen.get("task_id") or task_id(),
        args=args,
        kwargs=kwargs,
        callbacks=_signatures(app, name, options, "link") or defaults.get("link"),
        errbacks=_signatures(app, name, options, "link_error") or defaults.get("link_error"),
        chain=chosen.get("chain"),
        chord=chosen.get("chord"),
        eta=None if due is None else isoformat(due),
        expires=None if expires is None else isoformat(expires),
        shadow=chosen.get("shadow"),
        group=chosen.get("group_id"),
        group_index=chosen.get("group_index"),
        retries=chosen.get("retries", 0),
        timelimit=(hard or defaults.get("time_limit"), soft or defaults.get("soft_time_limit")),
        root_id=chosen.get("root_id"),
        parent_id=chosen.get("parent_id"),
        ignore_result=None if ignored is None else bool(ignored),
        replaced_task_nesting=chosen.get("replaced_task_nesting") or 0,
        stamped_headers=chosen.get("stamped_headers"),
        stamps=stamps_of(chosen),
        argsrepr=chosen.get("argsrepr"),
        kwargsrepr=chosen.get("kwargsrepr"),
        headers=_headers(name, unmarked(options.get("headers")), defaults.get("headers")),
        reply_to=chosen.get("reply_to") or None,
        priority=destination.priority,
        serializer=chosen.get("serializer") or app.conf.task_serializer,
        compression=chosen.get("compression"),
    )
    add_to_parent = options.get("add_to_parent") is not False
    return Call(message, marks, destination, due, expires, options.get("retry"), retry_policy, add_to_parent)


def _first_marks(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marks of a new call. One with predefined ids gets a new mark RUN, because it may have been
    made before."""
    marks = marks_in(options)
    if RUN not in marks:
        return {**marks, RUN: new_run()} if names_ids(options) else marks
    if not marks[RUN]:
        del marks[RUN]
    return marks


def _reply_to(app: App, task: Task | None, chosen: Mapping[str, Any]) -> str | None:
    """Return the queue for the results of a new call and the calls after it; None if there are none."""
    follow = any(map(chosen.get, ("chain", "link", "link_error")))
    if chosen.get("ignore_result") and not follow and not (task and task.store_errors_even_if_ignored):
        return None
    return app.stores.reply_to


def _routed_as(name: str, kwargs: Mapping[str, Any]) -> str:
    """Return the task name used to route a call of *name*: for a mapping, that of the called task, as in
    Celery."""
    inner = kwargs.get("task") if name in MAPPINGS else None
    called = inner.get("task") if isinstance(inner, Mapping) else None
    return called if isinstance(called, str) else name


MAPPINGS = frozenset(["celery.map", "celery.starmap"])
"""Tasks that call another task for each item."""


def stamps_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stamps in *options*, given separately by name, as in signatures, or in a mapping."""
    named = (name for name in listed(options.get("stamped_headers")) if name in options)
    return {**(options.get("stamps") or {}), **{name: options[name] for name in named}}


_ADDRESS = ("queue", "exchange", "routing_key")
_OF_TASK = (
    "queue", "exchange", "routing_key", "priority", "expires", "ignore_result", "serializer", "compression",
)  # fmt: skip
"""Options of a task that apply to all its calls."""

_OF_ROUTE = frozenset(["expires", "ignore_result", "serializer", "compression"])
"""Options that a route may set if neither the call nor the task does."""

_KEPT = frozenset(
    ["task_id", "root_id", "parent_id", "group_id", "group_index", "chain", "chord", "reply_to", "argsrepr",
     "kwargsrepr", "replaced_task_nesting", "stamped_headers", "stamps"]
)  # fmt: skip
"""Options that the next attempt always takes from the previous one."""


def _first_defaults(app: App, task: Task | None) -> dict[str, Any]:
    """Return the default options of a new call, from the task and from the running request."""
    defaults: dict[str, Any] = {}
    if task is not None:
        for key in _OF_TASK:
            value = getattr(task, key)
            if value is not None:
                defaults[key] = value
    parent = calling_context()
    if parent is None:
        return defaults
    if parent.id is not None:
        defaults["root_id"], defaults["parent_id"] = parent.root_id, parent.id
    if "priority" not in defaults and app.conf.task_inherit_parent_priority:
        defaults["priority"] = (parent.delivery_info or {}).get("priority")
    return defaults


def _next_defaults(request: Context, task: Task | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default options of the next attempt of *request*, for which *options* were given."""
    kept = retry_headers(message_headers(request), None, request.retries + 1, request.id)
    delivered = request.delivery_info or {}
    addressed = options.get("exchange") or options.get("routing_key")
    hard, soft = kept.get("timelimit") or (None, None)
    stamps = kept.get("stamps") or {}
    return {
        "task_id": str(request.id),
        "root_id": kept.get("root_id"),
        "parent_id": kept["parent_id"],
        "retries": kept["retries"],
        "group_id": kept.get("group"),
        "group_index": kept.get("group_index"),
        "chain": request.chain,
        "chord": request.chord,
        "link": request.callbacks,
        "link_error": request.errbacks,
        "expires": kept.get("expires"),
        "shadow": kept.get("shadow"),
        "argsrepr": _chosen(kept.get("argsrepr"), repr_args(request.args)),
        "kwargsrepr": _chosen(kept.get("kwargsrepr"), repr_kwargs(dict(request.kwargs))),
        "time_limit": hard,
        "soft_time_limit": soft,
        "ignore_result": kept.get("ignore_result"),
        "replaced_task_nesting": kept.get("replaced_task_nesting"),
        "stamped_headers": kept.get("stamped_headers"),
        "stamps": stamps,
        "headers": {
            key: value
            for key, value in kept.items()
            if key not in HEADERS and key not in MARKS and key not in stamps and key != "compression"
        },
        "reply_to": request.reply_to,
        "queue": None if addressed else delivered.get("routing_key"),
        "priority": delivered.get("priority"),
        "serializer": getattr(task, "serializer", None),
        "compression": getattr(task, "compression", None),
    }


def _chosen(text: str | None, usual: str) -> str | None:
    """Return *text*, which shows arguments, if the caller has chosen it, perhaps to hide a secret; None if it
    is the *usual* one."""
    return None if text == usual else text


def times_of(
    app: App, name: str, options: Mapping[str, Any], expires: Any
) -> tuple[float | None, float | None]:
    """Return when the call of *name* is due, by its *options*, and when it expires, in epoch seconds."""
    now, timezone = app.clock.now(), app.conf.timezone
    return _due(name, options, now, timezone), _moment(name, "expires", expires, now, timezone)


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
        due = now + max(0.0, length)  # a negative countdown means now
        from_epoch(due)
    except (TypeError, ValueError):
        raise PublishError(
            f"calling {name}: countdown={countdown!r} must be a number of seconds (or a timedelta) that ends "
            "before the year 10000"
        ) from None
    return due


def _moment(name: str, key: str, value: Any, now: float, timezone: str) -> float | None:
    """Return the epoch seconds of an eta or expires: a datetime or ISO text, or seconds from now for
    expires."""
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


def limits_of(name: str, options: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the (hard, soft) limits of the call in seconds; None means that of the task."""
    hard, soft = _limit(name, options, "time_limit"), _limit(name, options, "soft_time_limit")
    if soft is not None and hard is not None and soft > hard:
        raise PublishError(
            f"calling {name}: soft_time_limit ({soft:g} s) comes after time_limit ({hard:g} s): make it "
            "smaller"
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


def _check_readable(app: App, name: str, chosen: Mapping[str, Any]) -> None:
    """Raise PublishError for a call that every worker with these settings would dead-letter."""
    id, serializer = chosen.get("task_id"), chosen.get("serializer")
    if isinstance(id, str) and not valid_id(id):
        raise PublishError(
            f"calling {name}: task_id={id!r:.300} must be printable text of 1 to {MAX_ID} characters; leave "
            "it out, and a new one is made"
        )
    if serializer is not None and not content_types([serializer], "serializer") <= app.accept:
        raise PublishError(
            f"calling {name}: serializer={serializer!r} is not in accept_content "
            f"{list(app.conf.accept_content)}, so workers would refuse the message: add it there, or leave "
            "this out"
        )


def check_priority(name: str, options: Mapping[str, Any], highest: int) -> None:
    """Raise PublishError for an invalid priority of a call. The router limits those from messages."""
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


def _headers(name: str, headers: Any, kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return *kept*, the headers of the previous attempt, updated with *headers*."""
    if headers is None:
        return kept or {}
    if not isinstance(headers, Mapping) or not all(isinstance(key, str) for key in headers):
        raise PublishError(f"calling {name}: headers={headers!r:.200} must be a mapping with strings as keys")
    return {**kept, **headers} if kept else headers


def _signatures(app: App, name: str, options: Mapping[str, Any], key: str) -> list[Any] | None:
    if options.get(key) is None:
        return None
    try:
        return signatures(options[key], key, app) or None
    except TypeError as error:
        raise PublishError(f"calling {name}: {error}") from None
