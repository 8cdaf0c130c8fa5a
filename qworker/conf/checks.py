"""Checks: settings that are valid by themselves, but not in combination.

Comes from:  all resolved values, and the source of each.
Goes to:     Problems, in addition to those of single values, in `resolved.Settings.problems()`.
Thread:      pure functions.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qworker.conf.sources import Problem
from qworker.naming import close_matches

_SHORTEST_KEY = 32
_UNSAFE = frozenset({"pickle", "application/x-python-serialize"})
_BUILT_IN = frozenset({"json", "application/json"})

# Options of a route: the destination, and options of the call.
_ROUTE_OPTIONS = (
    "queue",
    "exchange",
    "routing_key",
    "priority",
    "serializer",
    "compression",
    "expires",
    "ignore_result",
)

Values = Mapping[str, Any]
Finding = tuple[str, str, str]  # setting, message, severity


def _limits(conf: Values) -> Iterator[Finding]:
    soft, hard = conf["task_soft_time_limit"], conf["task_time_limit"]
    if soft is not None and hard is not None and soft > hard:
        yield (
            "task_soft_time_limit",
            f"task_soft_time_limit ({soft:g} s) is longer than task_time_limit ({hard:g} s), so it would "
            "have no effect",
            "error",
        )


def _serializers(conf: Values) -> Iterator[Finding]:
    accepted, accepted_results = conf["accept_content"], conf["result_accept_content"]
    for setting in ("accept_content", "result_accept_content"):
        if conf[setting] is not None and not conf[setting]:
            yield setting, f'{setting} is empty, so nothing could be read; use ["json"]', "error"
    used = {
        "task_serializer": conf["task_serializer"],
        "result_serializer": conf["result_serializer"],
        **{f"accept_content ({name})": name for name in accepted},
        **{f"result_accept_content ({name})": name for name in accepted_results or ()},
    }
    for where, name in used.items():
        if name not in _BUILT_IN and not _registered(name):
            yield (
                where.partition(" ")[0],
                f"{where} names {name!r}, a serializer that is not installed",
                "error",
            )
    for setting, readable, reader in (
        ("task_serializer", accepted, "accept_content"),
        (
            "result_serializer",
            accepted if accepted_results is None else accepted_results,
            "result_accept_content",
        ),
    ):
        name = conf[setting]
        if readable and name not in readable and _content_type(name) not in readable:
            yield setting, f"{setting} is {name!r}, which {reader} {list(readable)} does not accept", "error"


def _compression(conf: Values) -> Iterator[Finding]:
    for setting in ("task_compression", "result_compression"):
        name = conf[setting]
        if name is None:
            continue
        from kombu import compression

        if name not in compression._aliases and name not in compression._encoders:
            yield (
                setting,
                f"{setting} is {name!r}, but must be one of {', '.join(sorted(compression._aliases))}",
                "error",
            )


def _registered(name: str) -> bool:
    from kombu.serialization import registry

    return name in registry.name_to_type or name in registry.type_to_name


def _content_type(name: str) -> str | None:
    if name in _BUILT_IN:
        return "application/json"
    from kombu.serialization import registry

    content_type = registry.name_to_type.get(name)
    return content_type if isinstance(content_type, str) else None


def _security(conf: Values) -> Iterator[Finding]:
    keys = conf["security_key"]
    for key in keys or ():
        if len(key.encode()) < _SHORTEST_KEY:
            message = (
                f"security_key has a key of {len(key.encode())} bytes; use at least {_SHORTEST_KEY}, for "
                'example from python -c "import secrets; print(secrets.token_urlsafe(48))"'
            )
            yield "security_key", message, "error"
            break
        if key.endswith((".key", ".pem")):
            message = (
                "security_key looks like the path of a key file, as in Celery; here it is the key itself, "
                "and anyone who can guess it can sign messages: read it from a file or the environment "
                "variable QWORKER_SECURITY_KEY"
            )
            yield "security_key", message, "error"
            break
    if keys:
        if conf["canvas_format"] == "celery":
            message = (
                "with a security_key Celery cannot take part in chords, and in Celery's format the order "
                "and number of their members are not signed: leave canvas_format out"
            )
            yield "canvas_format", message, "warning"
        return
    for setting in ("task_serializer", "result_serializer", "accept_content", "result_accept_content"):
        value = conf[setting]
        if _UNSAFE & ({value} if isinstance(value, str) else set(value or ())):
            message = (
                f"{setting} names pickle, which lets anyone who can send a message run code in your "
                "workers; set security_key too, so that only signed messages are read, or use json"
            )
            yield setting, message, "error"


def _queues(conf: Values) -> Iterator[Finding]:
    queues, default = conf["task_queues"], conf["task_default_queue"]
    if not conf["task_create_missing_queues"] and default not in queues:
        message = (
            f"task_default_queue is {default!r}, which is not in task_queues, and "
            "task_create_missing_queues is off"
        )
        yield "task_default_queue", message, "error"
    if conf["task_create_missing_queues"]:
        return
    for router in conf["task_routes"]:
        for pattern, route in router.items() if isinstance(router, Mapping) else ():
            queue = route if isinstance(route, str) else route.get("queue", default)
            if getattr(queue, "name", queue) not in queues:
                message = f"task_routes sends {pattern!r} to {queue!r}, a queue that is not in task_queues"
                yield "task_routes", message, "error"


def _routes(conf: Values) -> Iterator[Finding]:
    for router in conf["task_routes"]:
        for pattern, route in router.items() if isinstance(router, Mapping) else ():
            for option in route if isinstance(route, Mapping) else ():
                if option not in _ROUTE_OPTIONS:
                    nearest = close_matches(option, _ROUTE_OPTIONS)
                    hint = f"; did you mean {nearest[0]}?" if nearest else ""
                    message = f"task_routes gives {pattern!r} an option {option!r}, which has no effect{hint}"
                    yield "task_routes", message, "warning"


def _advice(conf: Values) -> Iterator[Finding]:
    if not conf["enable_utc"]:
        yield "enable_utc", "enable_utc = False has no effect: messages always carry UTC", "note"
    for setting in ("task_send_sent_event", "worker_send_task_events"):
        if conf[setting]:
            yield setting, f"{setting} has no effect: events come in a later version", "note"
    for setting in ("task_default_exchange", "task_default_routing_key"):
        if conf[setting] not in (None, conf["task_default_queue"]):
            yield setting, f"{setting} has no effect: the default queue is reached by its name", "note"
    if conf["task_always_eager"]:
        message = "task_always_eager is on: tasks run in the caller, and workers get none"
        yield "task_always_eager", message, "note"
    if _UNSAFE & set(conf["accept_content"]) and getattr(os, "geteuid", lambda: 1)() == 0:
        message = (
            "accept_content names pickle, and this process runs as root: anyone with the security_key "
            "controls the machine"
        )
        yield "accept_content", message, "warning"
    if conf["worker_pool"] == "solo" and (conf["worker_concurrency"] or 1) > 1:
        message = (
            f"worker_concurrency is {conf['worker_concurrency']} and has no effect: the pool solo runs one "
            "task at a time; prefork and threads run more"
        )
        yield "worker_concurrency", message, "note"
    if conf["worker_soft_shutdown_timeout"] and not conf["worker_shutdown_timeout"]:
        message = "worker_shutdown_timeout is 0: a worker that is told to stop interrupts its tasks at once"
        yield "worker_shutdown_timeout", message, "note"


def _spooler(conf: Values) -> Iterator[Finding]:
    least, most = conf["spooler_backoff"], conf["spooler_backoff_max"]
    if least > most:
        yield (
            "spooler_backoff",
            f"spooler_backoff ({least:g} s) is longer than spooler_backoff_max ({most:g} s), so the wait "
            "could not double",
            "error",
        )


CHECKS: tuple[Callable[[Values], Iterator[Finding]], ...] = (
    _limits,
    _serializers,
    _compression,
    _security,
    _queues,
    _routes,
    _spooler,
    _advice,
)


def check(values: Values, source: Callable[[str], str]) -> list[Problem]:
    """Return the problems of combinations of settings. source: returns the source of a setting's value."""
    return [
        Problem(setting, message, source(setting), severity)
        for function in CHECKS
        for setting, message, severity in function(values)
    ]
