"""Kinds: strict conversion of the values of settings.

Comes from:  a raw value from any source: Python objects, TOML, environment text, command-line text.
Goes to:     the value of a setting, or a ValueError whose text follows the setting's name: "must be …".
Thread:      any; pure functions.

Only unambiguous values are converted: "10" is ten and "false" is False, but 1.5 is not an integer and "maybe"
is not a boolean.
"""

import json
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from qworker.clock import seconds as to_seconds
from qworker.naming import valid_queue_name

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*+([kmgt]?)(i?)b?\s*\Z", re.IGNORECASE)
_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*+(?:/\s*([smh]))?\s*\Z", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
_NO_KEY = re.compile(r"""[\s,;"']""")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_POLICY_KEYS = ("max_retries", "interval_start", "interval_step", "interval_max")


class Kind(NamedTuple):
    """The type of a setting: `label` for the reference, `read` to convert a raw value."""

    label: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a non-empty string")
    return value.strip()


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else str(value) if value in (0, 1) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("must be true or false")


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value):
        return int(value)
    raise ValueError("must be a whole number")


def _duration(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError('must be a duration: seconds, or text such as "10s" or "1h30m"')
    try:
        result = to_seconds(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueError('must be a duration: seconds, or text such as "10s" or "1h30m"') from None
    if not 0 <= result < float("inf"):
        raise ValueError("must be a duration of zero or more seconds")
    return result


def _durations(value: Any) -> tuple[float, ...]:
    return tuple(_duration(item) for item in _list(value))


def _bytes(value: Any, unit: int = 1) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a size: a whole number, or text such as "200MB" or "16MiB"')
    number, power, _ = match.groups()
    if not power and not value.strip().lower().endswith("b"):
        return int(float(number))
    # Both MB and MiB are 1024², because many tools write MB for MiB.
    return int(float(number) * 1024 ** _POWERS[power.lower()]) // unit


def _kibibytes(value: Any) -> int:
    return _bytes(value, unit=1024)


def _url(value: Any) -> str:
    """Check the form of a URL. The driver for its scheme is checked when it is opened."""
    text = _text(value)
    match = _URL.match(text)
    if match is None:
        raise ValueError('must be a URL such as "sqlite:///path/to/file.db"')
    host = text[match.end() :].partition("/")[0].rpartition("@")[2].partition("?")[0]
    if text.startswith(("sqlite:", "db+sqlite:")) or host.endswith("]") or "," in host or ";" in host:
        return text  # a path, an IPv6 address without a port, or several hosts: not checked here
    _, colon, port = host.rpartition(":")
    if colon and not (port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError("has a port that is not a number between 1 and 65535")
    return text


def _broker_url(value: Any) -> str:
    """Read one URL, or several in a list or separated by ";". Return them separated by ";"."""
    parts = (
        _text(value).split(";") if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    )
    if not parts:
        raise ValueError("must name at least one broker")
    if len(parts) > 1 and isinstance(value, str) and str(parts[0]).strip().startswith("sentinel:"):
        return _url(value)  # one broker, with several sentinels
    return ";".join(_url(part.strip() if isinstance(part, str) else part) for part in parts)


def _address(value: Any) -> str:
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError('must be host:port such as "127.0.0.1:8080"; ":8080" is every interface')
    if host.startswith("[") != host.endswith("]") or (":" in host and not host.startswith("[")):
        raise ValueError('must have an IPv6 address in brackets: "[::1]:8080"')
    return text


def _backend_url(value: Any) -> str:
    """Read a URL, or one of the two names that Celery accepts too."""
    return {"disabled": "disabled://", "rpc": "rpc://"}.get(_text(value)) or _url(value)


def _json(value: str, shape: type, example: str) -> Any:
    try:
        result = json.loads(value)
    except ValueError:
        result = None
    if not isinstance(result, shape):
        raise ValueError(f"must be JSON such as {example} if it is a string")
    return result


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            return list(_json(value, list, '["a", "b"]'))
        return [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, Iterable) and not isinstance(value, (bytes, Mapping)):
        return list(value)
    raise ValueError("must be a list")


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(_list(value))
    if not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError("must be a list of names")
    return names


def _path(value: Any) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path.strip():
        raise ValueError("must be a path")
    if "\0" in path:
        raise ValueError("must be a path without NUL characters")
    return path


def _paths(value: Any) -> tuple[str, ...]:
    """Read one path, or several: as a list, as text separated by commas, or as JSON."""
    return tuple(map(_path, [value] if isinstance(value, os.PathLike) else _list(value)))


def _function(value: Any) -> str:
    module, _, name = _text(value).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise ValueError('must be a function such as "project.jobs:bridge"')
    return f"{module}:{name}"


def _spool_addresses(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value.startswith("[") and not value.rstrip().endswith("]"):
        value = [value]  # [::1]:3031
    addresses = _paths(value)
    for address in addresses:
        if "/" not in address and ":" in address and not address.startswith("@"):
            _address(address)
    return addresses


def _networks(value: Any) -> tuple[str, ...]:
    from ipaddress import ip_network

    networks = _names(value)
    for network in networks:
        try:
            ip_network(network.strip(), strict=False)
        except ValueError:
            raise ValueError(
                f"has {network[:80]!r}, which is not an address or network: 10.1.2.0/24"
            ) from None
    return tuple(network.strip() for network in networks)


def _secrets(value: Any) -> tuple[str, ...]:
    """Read one key, or several: the first signs and all verify, so that keys can be rotated.

    Text is one key or a JSON list. Quotes, spaces, commas and semicolons are refused: they may separate
    several keys, or be left from quoting in a shell, and signatures would not verify elsewhere.
    """
    text = value.strip() if isinstance(value, str) else ""
    if isinstance(value, str) and not text:
        raise ValueError("is empty: give a key, or remove the setting")
    if text.startswith("["):
        keys = tuple(_json(text, list, '["new key", "old key"]'))
    elif isinstance(value, str) and _NO_KEY.search(value):
        raise ValueError(
            "must be one key without quotes, spaces, commas or semicolons, or a list of keys, of which the "
            'first signs (in the environment as JSON: ["new key", "old key"])'
        )
    else:
        keys = (value,) if isinstance(value, str | bytes) else tuple(_list(value))
    try:
        keys = tuple(key.decode() if isinstance(key, bytes) else key for key in keys)
    except UnicodeDecodeError:
        raise ValueError("must be a string; convert random bytes with .hex()") from None
    if not keys or not all(isinstance(key, str) and key.strip() for key in keys):
        raise ValueError("must be a key, or a list of keys, of which the first signs")
    return keys


def _objects(value: Any) -> tuple[Any, ...]:
    return tuple(_list(value))


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        value = _json(value, dict, '{"key": "value"}')
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError("must be a mapping with strings as keys")
    return dict(value)


def _queue(value: Any) -> str:
    name = _text(value)
    if not valid_queue_name(name):
        raise ValueError("must be a queue name of letters, digits, dots, dashes and underscores")
    return name


def _queue_within(value: Any) -> str:
    """Check a queue name that is part of a value."""
    name = _text(value)
    if not valid_queue_name(name):
        raise ValueError(f"has the queue name {name[:80]!r}; use letters, digits, dot, dash, underscore")
    return name


def _queue_declaration(queue: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(queue, str):
        return queue, {}
    if isinstance(queue, Mapping) and "name" in queue:
        options = dict(queue)
        return options.pop("name"), options
    name = getattr(queue, "name", None)  # a kombu.Queue
    if not isinstance(name, str):
        raise ValueError('must name each queue: "mail", or {"name": "mail", "routing_key": "mail.#"}')
    exchange = getattr(queue, "exchange", None)
    if getattr(exchange, "type", None) == "fanout":
        name = getattr(queue, "alias", None) or name  # a broadcast queue is named by a random id
    bindings = [(binding.exchange, binding.routing_key) for binding in getattr(queue, "bindings", None) or ()]
    if len(bindings) == 1:
        exchange, key = bindings.pop()
    else:
        key = getattr(queue, "routing_key", None)
    arguments = dict(getattr(queue, "queue_arguments", None) or {})
    for argument, attribute, factor in _QUEUE_ARGUMENTS:
        if getattr(queue, attribute, None) is not None:
            arguments.setdefault(argument, int(getattr(queue, attribute) * factor))
    options = {
        "routing_key": key or name,
        "exchange": getattr(exchange, "name", ""),
        "exchange_type": getattr(exchange, "type", "direct") if getattr(exchange, "name", "") else "direct",
        "max_priority": getattr(queue, "max_priority", None) or arguments.get("x-max-priority"),
        "queue_arguments": arguments,
        "bindings": sorted((binding.name, binding.type, key or name) for binding, key in bindings),
    }
    return name, {key: value for key, value in options.items() if value and value != "direct"}


_QUEUE_ARGUMENTS = (
    ("x-message-ttl", "message_ttl", 1000),
    ("x-expires", "expires", 1000),
    ("x-max-length", "max_length", 1),
    ("x-max-length-bytes", "max_length_bytes", 1),
)
"""RabbitMQ's queue arguments, the attributes of kombu.Queue for them, and the factor between their units."""


def _to_all(options: Mapping[str, Any]) -> bool:
    """Return whether a queue is bound to an exchange that may copy a message to several queues."""
    kinds = [options.get("exchange_type"), *(kind for _, kind, _ in options.get("bindings") or ())]
    return not {"fanout", "headers"}.isdisjoint(kinds)


def _queues(value: Any) -> dict[str, dict[str, Any]]:
    """Return {name: options} for a mapping, or a list of names, mappings with "name", or kombu.Queue."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _mapping(value)
    pairs = (
        [(name, {} if options is None else options) for name, options in value.items()]
        if isinstance(value, Mapping)
        else [_queue_declaration(queue) for queue in _list(value)]
    )
    queues: dict[str, dict[str, Any]] = {}
    for name, options in pairs:
        if not isinstance(options, Mapping):
            raise ValueError(f"has options for queue {name!r} that are not a mapping")
        if _to_all(options):
            raise ValueError(
                f"has the broadcast queue {name!r}, but broadcast queues, and exchanges of the kinds "
                "fanout and headers, are not supported: each message goes to one queue; give every worker "
                "its own queue, and send a call to each"
            )
        if queues.setdefault(_queue_within(name), dict(options)) != dict(options):
            raise ValueError(f"declares queue {name!r} twice with different options")
    return queues


def _pairs(router: Sequence[Any]) -> dict[Any, Any]:
    """Return the mapping for a pair (pattern, route), or a list of such pairs."""
    pairs: list[Any] = (
        [router] if len(router) == 2 and not isinstance(router[0], (tuple, list)) else list(router)
    )
    if not all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], Hashable) for pair in pairs
    ):
        raise ValueError(f"has {router!r:.200}; a list in it must be of pairs (pattern, route)")
    return dict(pairs)


def _routes(value: Any) -> list[Any]:
    """Read one router or a list of them: a mapping pattern → queue name or options, a list of such pairs, a
    callable, an object with ``route_for_task``, or the dotted name of one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _mapping(value)
    routers: list[Any] = []
    is_single = isinstance(value, Mapping) or callable(value) or hasattr(value, "route_for_task")
    for router in [value] if is_single else _list(value):
        if isinstance(router, (tuple, list)):
            router = _pairs(router)
        if isinstance(router, Mapping):
            for pattern, route in router.items():
                if not isinstance(route, Mapping):
                    _queue_within(getattr(route, "name", route))
                elif "queue" in route:
                    _queue_within(getattr(route["queue"], "name", route["queue"]))
                if not (isinstance(pattern, str) or hasattr(pattern, "match")):
                    raise ValueError(
                        f"has a pattern {pattern!r} that is neither text nor a regular expression"
                    )
        elif not callable(router) and not isinstance(router, str) and not hasattr(router, "route_for_task"):
            raise ValueError(f"has a router {router!r}; use a mapping, a function, or its dotted name")
        routers.append(router)
    return [router for router in routers if router != {}]


def _rate(value: Any) -> str:
    """Read "10/s", "100/m", "5/h", or a number of tasks per second."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    match = _RATE.match(value) if isinstance(value, str) else None
    if match is None or float(match.group(1)) <= 0:
        raise ValueError('must be a rate such as "10/s", "100/m" or "5/h"')
    return f"{match.group(1)}/{(match.group(2) or 's').lower()}"


def _policy(value: Any) -> dict[str, Any]:
    policy = _mapping(value)
    for key, number in policy.items():
        if key not in _POLICY_KEYS:
            raise ValueError(f"has the unknown key {key!r}; the known keys are {', '.join(_POLICY_KEYS)}")
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, (int, float)) or number < 0
        ):
            raise ValueError(f"must have a number of zero or more for {key!r}")
    return policy


def _timezone(value: Any) -> str:
    name = getattr(value, "key", value)
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(_text(name))
    except Exception:  # noqa: BLE001
        # ZoneInfo raises various errors for names that are paths, directories or invalid.
        raise ValueError('must be a time zone such as "UTC" or "Europe/Zurich"') from None
    return _text(name)


def _tls(value: Any) -> bool | dict[str, Any]:
    if isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{")):
        return _mapping(value)
    try:
        return _boolean(value)
    except ValueError:
        raise ValueError('must be true, or a mapping such as {"ssl_ca_certs": "/etc/ssl/ca.pem"}') from None


def _anything(value: Any) -> Any:
    return value


TEXT = Kind("text", _text)
BOOLEAN = Kind("true or false", _boolean)
INTEGER = Kind("whole number", _integer)
DURATION = Kind("duration (seconds)", _duration)
DURATIONS = Kind("list of durations", _durations)
BYTES = Kind("size (bytes)", _bytes)
KIBIBYTES = Kind("size (KiB)", _kibibytes)
URL = Kind("URL", _url)
BROKER_URL = Kind("URL or list of URLs", _broker_url)
BACKEND_URL = Kind("URL", _backend_url)
ADDRESS = Kind("address (host:port)", _address)
NAMES = Kind("list of names", _names)
PATH = Kind("path", _path)
PATHS = Kind("path or list of paths", _paths)
FUNCTION = Kind("function (module:function)", _function)
SPOOL_ADDRESSES = Kind("address or list of addresses", _spool_addresses)
NETWORKS = Kind("list of addresses and networks", _networks)
SECRETS = Kind("key or list of keys", _secrets)
OBJECTS = Kind("list of objects or dotted names", _objects)
MAPPING = Kind("mapping", _mapping)
QUEUE = Kind("queue name", _queue)
QUEUES = Kind("queues", _queues)
ROUTES = Kind("routes", _routes)
RATE = Kind("rate", _rate)
POLICY = Kind("retry policy", _policy)
TIMEZONE = Kind("time zone", _timezone)
TLS = Kind("true or mapping", _tls)
ANYTHING = Kind("anything", _anything)
