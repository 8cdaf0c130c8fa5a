"""kinds: what values of Q_CLUSTER may be, beside the kinds that all of qworker has.

Comes from:  raw values: Python's objects, or text out of an environment.
Goes to:     the table ``keys.KEYS``; a value, or ValueError: how a sentence ends that begins "KEY is".
Thread:      pure functions, any thread.
"""

import math
from logging import getLevelNamesMapping
from typing import Any

from django.utils.functional import Promise

from qworker.conf.kinds import BOOLEAN, INTEGER, MAPPING, TEXT, Kind


def whole(least: int) -> Kind:
    """Whole numbers from *least* on."""

    def read(value: Any) -> int:
        try:
            number = INTEGER.read(value)
        except ValueError:
            number = None
        if number is None or number < least:
            raise ValueError(f"must be a whole number, {least} or more")
        return int(number)

    return Kind(f"whole number, {least} or more", read)


def seconds(below: float = math.inf) -> Kind:
    """Seconds, more than 0; less than *below* where that is given. A whole number stays one."""
    label = "seconds, more than 0" + ("" if below == math.inf else f" and less than {below:g}")

    def read(value: Any) -> float:
        number = _number(value)
        if number is None or not 0 < number < below:
            raise ValueError(f"must be {label}")
        return number

    return Kind(label, read)


def _number(value: Any) -> float | None:
    """A number given as one, as text, or as a timedelta; None for what is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value.total_seconds() if hasattr(value, "total_seconds") else value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() and not isinstance(value, float) else number


def one_of(*choices: str) -> Kind:
    """One of these words."""
    label = ", ".join(f'"{choice}"' for choice in choices[:-1]) + f' or "{choices[-1]}"'

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"must be {label}")
        return value

    return Kind(label, read)


def _path(value: Any) -> str:
    if not isinstance(value, str) or "." not in value or not all(map(str.isidentifier, value.split("."))):
        raise ValueError('must be the dotted path of a class, such as "myapp.broker.CustomBroker"')
    return value


def _level(value: Any) -> str | int:
    name = value.upper() if isinstance(value, str) else value
    levels = getLevelNamesMapping()
    if isinstance(name, bool) or not (name in levels if isinstance(name, str) else isinstance(name, int)):
        raise ValueError('must be a level of logging such as "INFO" or "DEBUG"')
    return name


def _redis(value: Any) -> str | dict[str, Any]:
    if isinstance(value, str) and value.partition("://")[0] in ("redis", "rediss", "unix"):
        return value
    try:
        return dict(MAPPING.read(value))
    except ValueError:
        raise ValueError(
            "must be a mapping of redis-py's connection options, or a URL of redis://, rediss:// or unix://"
        ) from None


def _cached(value: Any) -> bool | float:
    number = _number(value)
    if not isinstance(value, bool) and number is not None and number > 1:
        return number
    try:
        return bool(BOOLEAN.read(value))
    except ValueError:
        raise ValueError("must be true, false, or the seconds that results are kept, more than 1") from None


def _mappings(value: Any) -> dict[str, dict[str, Any]]:
    try:
        return {name: dict(MAPPING.read(inner)) for name, inner in MAPPING.read(value).items()}
    except ValueError:
        raise ValueError("must be a mapping of names to mappings") from None


def _label(value: Any) -> Any:
    return value if isinstance(value, Promise) else TEXT.read(value)


PATH = Kind("dotted path of a class", _path)
LEVEL = Kind("level of logging", _level)
REDIS = Kind("mapping or URL", _redis)
CACHED = Kind("true, false or seconds, more than 1", _cached)
MAPPINGS = Kind("mapping of names to mappings", _mappings)
LABEL = Kind("text, also one to be translated", _label)
