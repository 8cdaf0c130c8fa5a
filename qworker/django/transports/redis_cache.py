"""redis_cache: the URL and transport options for the server of a django-redis cache.

Comes from:  ``CACHES``, for ``Q_CLUSTER['django_redis']``.
Goes to:     ``urls.py``.
Thread:      any; functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from qworker.errors import ConfigurationError
from qworker.naming import did_you_mean
from qworker.transports.redis.client_options import merged, split

_OF_VALUES = frozenset({
    "SERIALIZER", "COMPRESSOR", "COMPRESSION_LEVEL", "IGNORE_EXCEPTIONS", "LOG_IGNORED_EXCEPTIONS",
    "LOGGER", "PICKLE_VERSION", "REVERSE_KEY_FUNCTION", "CLOSE_CONNECTION", "MAX_ENTRIES", "CULL_FREQUENCY",
    "CACHE_HERD_TIMEOUT", "PARSER_CLASS", "REDIS_CLIENT_KWARGS", "KEY_PREFIX", "VERSION", "TIMEOUT",
})  # fmt: skip
"""Options that concern the cache's values, or a client with its own pool."""
_OF_ANOTHER = frozenset({
    "DB", "MAX_CONNECTIONS", "CONNECTION_POOL_CLASS_KWARGS", "KEY_FUNCTION",
})  # fmt: skip
"""Options of django-redis-cache that many projects still have; django-redis ignores them."""
_CLASSES = ("CLIENT_CLASS", "CONNECTION_FACTORY", "CONNECTION_POOL_CLASS", "REDIS_CLIENT_CLASS")
_KNOWN_PACKAGES = ("redis.", "django_redis.")
_CONNECTION = {
    "PASSWORD": "password",
    "SOCKET_TIMEOUT": "socket_timeout",
    "SOCKET_CONNECT_TIMEOUT": "socket_connect_timeout",
}
_POOL, _SENTINELS, _SENTINEL_KWARGS = "CONNECTION_POOL_KWARGS", "SENTINELS", "SENTINEL_KWARGS"
_NAMES = (*_OF_VALUES, *_CLASSES, *_CONNECTION, _POOL, _SENTINELS, _SENTINEL_KWARGS)
SETTING = "django_redis"


def cache_url(alias: str, caches: Mapping[str, Any], factory: str | None) -> tuple[str, dict[str, Any]]:
    """Return the URL of the server that the cache *alias* writes to, and transport options.

    factory: the setting ``DJANGO_REDIS_CONNECTION_FACTORY``. Raises ConfigurationError for options without an
    equivalent.
    """
    where = f"CACHES[{alias!r}]"
    cache = _mapping(caches.get(alias), where)
    location = cache.get("LOCATION") or ""
    places = location.split(",") if isinstance(location, str) else location
    if not isinstance(places, list | tuple) or not all(isinstance(place, str) for place in places):
        raise _wrong(f"{where}: 'LOCATION' must be a redis://, rediss:// or unix:// URL, or a list of them")
    first = next(iter(places), "")
    given = dict(_mapping(cache.get("OPTIONS"), f"{where}: 'OPTIONS'"))
    if factory:
        given.setdefault("CONNECTION_FACTORY", factory)
    if not first:
        raise _wrong(f"{where} has no LOCATION")
    _look_at(given, where)
    options = {_CONNECTION[name]: given[name] for name in _CONNECTION if given.get(name) is not None}
    options |= _mapping(given.get(_POOL), f"{where}: {_POOL!r}")
    if sentinels := given.get(_SENTINELS):
        kwargs = _mapping(given.get(_SENTINEL_KWARGS), f"{where}: {_SENTINEL_KWARGS!r}")
        return _by_sentinels(first, sentinels, kwargs, options, where)
    return merged(first, options, f"Q_CLUSTER[{SETTING!r}]: {where}")


def _look_at(given: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name not in _NAMES and name not in _OF_ANOTHER:
            hint = did_you_mean(name, _NAMES)
            raise _wrong(f"{where}: 'OPTIONS' has {name!r}, which is not one of django-redis{hint}")
        path = value if isinstance(value, str) else f"{getattr(value, '__module__', '')}."
        if name in _CLASSES and value and not path.startswith(_KNOWN_PACKAGES):
            raise _wrong(
                f"{where}: {name!r} is a custom class, {path}: its effect on the connection cannot be "
                "applied here; set Q_CLUSTER['redis'] instead of 'django_redis'"
            )


def _by_sentinels(
    location: str, sentinels: Any, kwargs: Mapping[str, Any], given: Mapping[str, Any], where: str
) -> tuple[str, dict[str, Any]]:
    """Return a Sentinel URL and options. location: ``redis://NAME/0`` with the master's name."""
    parts = split(location, f"Q_CLUSTER[{SETTING!r}]: {where}")
    if not parts.hostname:
        raise _wrong(f"{where}: LOCATION must name the master, as in redis://mymaster/0")
    try:
        places = [(str(host), int(port)) for host, port in sentinels]
    except (TypeError, ValueError):
        raise _wrong(f"{where}: 'SENTINELS' must be a list of pairs of a host and a port") from None
    hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
    login, at, _ = parts.netloc.rpartition("@")
    tls = "ssl=true" if parts.scheme in ("rediss", "valkeys") else ""
    asked = "&".join(
        f"{quote(name)}={quote(value)}" for name, value in parse_qsl(parts.query) if name != "is_master"
    )
    query = "&".join(filter(None, [tls, asked]))
    url = f"sentinel://{login}{at}{hosts}{parts.path}{'?' * bool(query)}{query}"
    found, options = merged(url, {"ssl": True, **given} if tls else given, f"Q_CLUSTER[{SETTING!r}]: {where}")
    # urlsplit() returns the name in lower case.
    name = parts.netloc.rpartition("@")[2].partition(":")[0]
    return found, {**options, "master_name": name, "sentinel_kwargs": dict(kwargs)}


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value or {}, Mapping):
        raise _wrong(f"{what} must be a mapping")
    return value or {}


def _wrong(text: str) -> ConfigurationError:
    return ConfigurationError(f"Q_CLUSTER[{SETTING!r}]: {text}", setting=SETTING)
