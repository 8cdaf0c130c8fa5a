"""kinds: what values of Q_CLUSTER may be, beside the kinds that all of qworker has.

Comes from:  raw values: Python's objects, or text out of an environment.
Goes to:     the table ``keys.KEYS``; a value, or ValueError: how a sentence ends that begins "KEY is".
Thread:      pure functions, any thread.
"""

import math
import re
from logging import getLevelNamesMapping
from typing import Any

from django.utils.functional import Promise

from qworker.conf.kinds import BOOLEAN, INTEGER, MAPPING, NAMES, TEXT, Kind
from qworker.naming import near


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


_NODE = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]:/@,?#\s]+)(:\d{1,5})?")
_HOST = re.compile(r"[^\[\]:/@,?#\s]+")


def _nodes(value: Any) -> tuple[str, ...]:
    try:
        nodes = tuple(NAMES.read(value))
    except ValueError:
        nodes = ()
    if not nodes or not all(_is_node(node) for node in nodes):
        raise ValueError(
            'must be a list of nodes, each "host:port" or "host", and the password in disque_auth'
        )
    return nodes


def _is_node(node: str) -> bool:
    match = _NODE.fullmatch(node)
    return match is not None and (match[2] is None or _is_port(match[2][1:]))


def _is_port(value: Any) -> bool:
    return isinstance(value, int | str) and str(value).isdecimal() and 0 < int(value) < 65536


_IRON: dict[str, tuple[str, Any]] = {
    "host": ("the name of a server", lambda value: isinstance(value, str) and _HOST.fullmatch(value)),
    "port": ("a number of a port", _is_port),
    "protocol": ('"https" or "http"', lambda value: value in ("https", "http")),
    "project_id": ("text", lambda value: isinstance(value, str)),
    "token": ("text", lambda value: isinstance(value, str)),
    "api_version": ("3, the only version of IronMQ that is spoken here", lambda value: str(value) == "3"),
}
"""The options of IronMQ: what each must be, and whether a value is that."""


def _iron(value: Any) -> dict[str, Any]:
    try:
        given = {name: option for name, option in MAPPING.read(value).items() if option is not None}
    except ValueError:
        raise ValueError(f"must be a mapping with {', '.join(_IRON)}") from None
    for name, option in given.items():
        if name not in _IRON:
            hint = near(str(name), _IRON, 1)
            did_you_mean = f"; did you mean {hint[0]!r}?" if hint else f"; it can have {', '.join(_IRON)}"
            raise ValueError(f"has the unknown option {name!r}{did_you_mean}")
        what, fits = _IRON[name]
        if not fits(option):
            raise ValueError(f"{name!r} must be {what}")
    return given


def _database(value: Any) -> str:
    name: str = TEXT.read(value)
    if set(name) & set('/\\. "$*<>:|?\0') or len(name.encode()) > 63:
        raise ValueError("must be a name of up to 63 bytes without spaces, quotes or any of /\\.$*<>:|?")
    return name


PATH = Kind("dotted path of a class", _path)
LEVEL = Kind("level of logging", _level)
REDIS = Kind("mapping or URL", _redis)
CACHED = Kind("true, false or seconds, more than 1", _cached)
MAPPINGS = Kind("mapping of names to mappings", _mappings)
NODES = Kind("list of nodes", _nodes)
IRON = Kind("mapping", _iron)
DATABASE = Kind("name of a database", _database)
LABEL = Kind("text, also one to be translated", _label)
