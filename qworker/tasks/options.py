"""The options of a task: their names, values, and settings.

Comes from:  ``@app.task(**options)`` and the class attributes of a custom base.
Goes to:     the attributes of Task, set once from ``app.conf`` when the app is finalized.
Thread:      any; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qworker.conf import kinds
from qworker.conf.unsupported import TASK_OPTIONS, refuse
from qworker.errors import ConfigurationError
from qworker.naming import close_matches

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def rate_per_second(limit: str | float | None) -> float | None:
    """Return the tasks per second of a rate limit: "10/s", "100/m", "5/h", or a number per second.

    Return None (no limit) for None. Raises ValueError, which names the accepted forms.
    """
    if limit is None:
        return None
    count, _, unit = str(kinds.RATE.read(limit)).partition("/")
    return float(count) / _SECONDS[unit]


def _whole(value: object) -> int:
    number = kinds.INTEGER.read(value)
    if number < 0:
        raise ValueError("must be a whole number of 0 or more")
    return int(number)


def _count(value: object) -> int:
    if _whole(value) == 0:
        raise ValueError("must be a whole number of 1 or more")
    return _whole(value)


def _exceptions(value: object) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"must be exception classes, and {kind!r} is not one")
    return classes


def _backoff(value: object) -> float | bool:
    return value if isinstance(value, bool) else float(kinds.DURATION.read(value))


def _expires(value: object) -> Any:
    # Both a datetime and a duration are accepted; the publisher distinguishes them.
    return value if hasattr(value, "isoformat") else kinds.DURATION.read(value)


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "serializer": kinds.TEXT.read,
    "compression": kinds.TEXT.read,
    "queue": kinds.QUEUE.read,
    "exchange": str,
    "routing_key": kinds.TEXT.read,
    "priority": _whole,
    "expires": _expires,
    "rate_limit": kinds.RATE.read,
    "time_limit": kinds.DURATION.read,
    "soft_time_limit": kinds.DURATION.read,
    "acks_late": kinds.BOOLEAN.read,
    "acks_on_failure_or_timeout": kinds.BOOLEAN.read,
    "reject_on_worker_lost": kinds.BOOLEAN.read,
    "max_deliveries": _count,
    "ignore_result": kinds.BOOLEAN.read,
    "keep_failed": kinds.BOOLEAN.read,
    "store_errors_even_if_ignored": kinds.BOOLEAN.read,
    "track_started": kinds.BOOLEAN.read,
    "throws": _exceptions,
    "autoretry_for": _exceptions,
    "dont_autoretry_for": _exceptions,
    "max_retries": _whole,
    "default_retry_delay": kinds.DURATION.read,
    "retry_backoff": _backoff,
    "retry_backoff_max": kinds.DURATION.read,
    "retry_jitter": kinds.BOOLEAN.read,
    "retry_kwargs": kinds.MAPPING.read,
    "resultrepr_maxsize": _whole,
    "trail": kinds.BOOLEAN.read,
    "send_events": kinds.BOOLEAN.read,
    "typing": kinds.BOOLEAN.read,
    "schedule": lambda value: value,
}
"""Every option that ``@app.task`` takes besides name, bind and base, with the function that reads its value.

``TaskOptions`` documents them.
"""

FROM_SETTINGS: dict[str, str] = {
    "serializer": "task_serializer",
    "compression": "task_compression",
    "rate_limit": "task_default_rate_limit",
    "time_limit": "task_time_limit",
    "soft_time_limit": "task_soft_time_limit",
    "acks_late": "task_acks_late",
    "acks_on_failure_or_timeout": "task_acks_on_failure_or_timeout",
    "reject_on_worker_lost": "task_reject_on_worker_lost",
    "max_deliveries": "task_max_deliveries",
    "ignore_result": "task_ignore_result",
    "keep_failed": "task_keep_failed",
    "store_errors_even_if_ignored": "task_store_errors_even_if_ignored",
    "track_started": "task_track_started",
}
"""The setting used for an option that is None."""


def parse(
    task_name: str, options: Mapping[str, Any], extra: Callable[[], frozenset[str]] = frozenset
) -> dict[str, Any]:
    """Return the checked values of *options*. None stays None, so that the setting applies.

    - task_name: for errors.
    - extra: returns the names of options that middlewares declare. Their values are not checked.

    Raises ConfigurationError, which names the task, the option and the nearest spelling.
    """
    parsed: dict[str, Any] = {}
    for name, value in options.items():
        parser = OPTIONS.get(name)
        if parser is None and name not in extra():
            refuse(f"task {task_name}", [name], TASK_OPTIONS)
            guesses = close_matches(name, [*OPTIONS, *extra(), "name", "bind", "base"])
            hint = f" Did you mean {' or '.join(guesses)}?" if guesses else ""
            raise ConfigurationError(f"task {task_name}: there is no task option {name!r}.{hint}")
        try:
            parsed[name] = value if value is None or parser is None else parser(value)
        except ValueError as error:
            raise ConfigurationError(f"task {task_name}: {name}={value!r} {error}") from None
    soft, hard = parsed.get("soft_time_limit"), parsed.get("time_limit")
    if soft and hard and soft > hard:
        raise ConfigurationError(
            f"task {task_name}: soft_time_limit ({soft:g} s) comes after time_limit ({hard:g} s): make it "
            "smaller"
        )
    return parsed
