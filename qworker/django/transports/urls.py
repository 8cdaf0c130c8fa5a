"""urls: where a broker is that is no database, as a URL that qworker's transports take.

Comes from:  the keys of ``Q_CLUSTER`` that name it.
Goes to:     ``opening.py`` and ``clusters/engine.py``, which open it; ``redis_channel.py``; the checks.
Thread:      any; functions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings

from qworker.django.conf import ClusterConf, conf
from qworker.errors import ConfigurationError
from qworker.naming import import_object

MONGO = "qworker.django.transports.mongo_url"
IRONMQ = "qworker.transports.ironmq.address"
"""Modules that only a project with that broker needs."""
_DISQUE_KEEPS = 30 * 86400
"""Seconds after which Disque forgets a job, done or not."""
_TTL_OF_RETRY = 4
"""A job must live at least so many times the seconds of retry: see the transport."""
Found = tuple[str, dict[str, Any]]
"""A URL, and settings of qworker."""


def url_and_options(kind: str, conf: ClusterConf = conf) -> Found:
    """Return the URL of a broker that is no database of Django's, and the settings of qworker that go with
    it. Raises ConfigurationError for keys that make no address."""
    return _URLS[kind](conf)


def _redis(conf: ClusterConf) -> Found:
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


def _sqs(conf: ClusterConf) -> Found:
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


def _mongo(conf: ClusterConf) -> Found:
    url, options = import_object(f"{MONGO}:mongo_url")(conf.mongo, conf.mongo_db)
    import_object(f"{MONGO}:check_with_pymongo")(url, options)
    return url, {"broker_transport_options": options}


def _disque(conf: ClusterConf) -> Found:
    who = f":{quote(conf.disque_auth, safe='')}@" if conf.disque_auth else ""
    retry = math.ceil(conf.retry)
    options = {
        "retry": retry,
        "ttl": max(_DISQUE_KEEPS, _TTL_OF_RETRY * retry),
        "fastack": conf.disque_fastack,
    }
    return f"disque://{who}{','.join(conf.disque_nodes)}", {"broker_transport_options": options}


def _ironmq(conf: ClusterConf) -> Found:
    given = conf.iron_mq
    project, token = (quote(given.get(name, ""), safe="") for name in ("project_id", "token"))
    who = f"{project}:{token}@" if project or token else ""
    scheme = "ironmq+http" if given.get("protocol") == "http" else "ironmq"
    port = f":{given['port']}" if "port" in given else ""
    url = f"{scheme}://{who}{given.get('host', '')}{port}"
    try:
        import_object(f"{IRONMQ}:address_of")(url, os.environ)
    except ConfigurationError:
        raise ConfigurationError(
            "Q_CLUSTER['iron_mq'] needs 'project_id' and 'token', there or as IRON_MQ_PROJECT_ID and "
            "IRON_MQ_TOKEN in the environment",
            setting="iron_mq",
        ) from None
    return url, {"broker_transport_options": {"visibility_timeout": math.ceil(conf.retry)}}


_URLS: dict[str, Callable[[ClusterConf], Found]] = {
    "redis": _redis,
    "sqs": _sqs,
    "mongo": _mongo,
    "disque": _disque,
    "ironmq": _ironmq,
}
CHECKED = frozenset({"mongo", "disque", "ironmq"})
"""Kinds whose keys url_and_options() looks at, in place of the server's client."""
