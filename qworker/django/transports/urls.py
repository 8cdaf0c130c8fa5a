"""urls: where a broker is that is no database, as a URL that qworker's transports take.

Comes from:  ``Q_CLUSTER['redis']``, ``['django_redis']`` and ``['sqs']``.
Goes to:     ``opening.py`` and ``clusters/engine.py``, which open it; ``redis_channel.py``.
Thread:      any; functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings

from qworker.django.conf import conf


def url_and_options(kind: str) -> tuple[str, dict[str, Any]]:
    """Return the URL of a broker that is no database, and the settings of qworker that go with it."""
    return _URLS[kind]()


def _redis() -> tuple[str, dict[str, Any]]:
    if conf.django_redis:
        return _django_redis(conf.django_redis), {}
    given = conf.redis
    if isinstance(given, str):
        return given, {}
    given = dict(given or {})
    password, user = given.get("password"), given.get("username")
    who = f"{quote(user or '', safe='')}:{quote(password, safe='')}@" if password else ""
    if given.get("unix_socket_path"):
        return f"redis+socket://{who}{given['unix_socket_path']}?virtual_host={given.get('db', 0)}", {}
    scheme = "rediss" if given.get("ssl") else "redis"
    host, port = given.get("host", "localhost"), given.get("port", 6379)
    return f"{scheme}://{who}{host}:{port}/{given.get('db', 0)}", {}


def _django_redis(alias: str) -> str:
    location = settings.CACHES[alias]["LOCATION"]
    first = location if isinstance(location, str) else location[0]
    return str(first).split(",")[0]


def _sqs() -> tuple[str, dict[str, Any]]:
    given = dict(conf.sqs)
    key, secret = given.get("aws_access_key_id"), given.get("aws_secret_access_key")
    who = f"{quote(key, safe='')}:{quote(secret, safe='')}@" if key and secret else ""
    options: dict[str, Any] = {"visibility_timeout": conf.retry}
    if region := given.get("aws_region") or given.get("region_name"):
        options["region"] = region
    if wait := given.get("receive_message_wait_time_seconds"):
        options["wait_time_seconds"] = wait
    where = urlsplit(given.get("endpoint_url") or "")
    if where.scheme == "https":
        options["is_secure"] = True
    return f"sqs://{who}{where.netloc}", {"broker_transport_options": options}


_URLS: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {"redis": _redis, "sqs": _sqs}
