"""urls: the URL of a broker that is not one of Django's databases, for qworker's transports.

Comes from:  the keys of ``Q_CLUSTER`` that configure it.
Goes to:     ``opening.py`` and ``clusters/engine.py``, which open it; ``redis_channel.py``; the checks.
Thread:      any; functions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlsplit

from django.conf import settings

from qworker.django.conf import ClusterConf, conf
from qworker.errors import ConfigurationError
from qworker.naming import close_matches, import_object
from qworker.safe_repr import safe_repr

MONGO = "qworker.django.transports.mongo_url"
REDIS_CACHE = "qworker.django.transports.redis_cache"
REDIS_OPTIONS = "qworker.transports.redis.client_options"
REDIS = "qworker.transports.redis.url"
IRONMQ = "qworker.transports.ironmq.address"
"""Modules needed only for their brokers."""
_DISQUE_KEEPS = 30 * 86400
"""Seconds after which Disque deletes a job, even if it was not run."""
_TTL_OF_RETRY = 4
"""A job's lifetime is at least this many times ``retry``: see the transport."""
_SQS = (
    "aws_region", "region_name", "aws_access_key_id", "aws_secret_access_key",
    "receive_message_wait_time_seconds", "endpoint_url",
)  # fmt: skip
_SECONDS_OF_SQS = "receive_message_wait_time_seconds"
_MOST_OF_SQS = 20
_NOT_OF_SQS = {
    "aws_session_token": "use the environment variable AWS_SESSION_TOKEN, with those of both keys",
    "profile_name": "use the environment variable AWS_PROFILE",
    "botocore_session": "use environment variables to configure the session of boto3",
    "aws_account_id": "remove it; SQS does not need it",
}
"""Options of boto3's session that are not supported, and what to do instead."""
_OF_REDIS = ("broker_transport_options", "result_backend_transport_options")
"""Both settings get the same options: Redis also stores results without a package."""
Found = tuple[str, dict[str, Any]]
"""A URL, and qworker settings."""


def url_and_options(kind: str, conf: ClusterConf = conf) -> Found:
    """Return the URL of a broker that is not one of Django's databases, and qworker settings for it. Raises
    ConfigurationError for invalid keys."""
    return _URLS[kind](conf)


def _redis(conf: ClusterConf) -> Found:
    if conf.django_redis:
        factory = getattr(settings, "DJANGO_REDIS_CONNECTION_FACTORY", None)
        url, options = import_object(f"{REDIS_CACHE}:cache_url")(conf.django_redis, settings.CACHES, factory)
    elif isinstance(conf.redis, str):
        url, options = conf.redis, {}
    else:
        url, options = import_object(f"{REDIS_OPTIONS}:url_of")(conf.redis or {}, "Q_CLUSTER['redis']")
    if find_spec("redis") is not None:
        key = "django_redis" if conf.django_redis else "redis"
        import_object(f"{REDIS}:endpoint")(url, options, setting=f"Q_CLUSTER[{key!r}]")
    return url, dict.fromkeys(_OF_REDIS, options) if options else {}


def _sqs(conf: ClusterConf) -> Found:
    given = {name: value for name, value in (conf.sqs or {}).items() if value is not None}
    for name in given:
        if name not in _SQS:
            raise _wrong_sqs(f"has the unsupported option {name!r}: {_NOT_OF_SQS.get(name) or _meant(name)}")
        if name == _SECONDS_OF_SQS:
            if _waits(given[name]) is None:
                raise _wrong_sqs(
                    f"has {name!r} = {safe_repr(given[name], 80)}, which must be 0 to 20 seconds"
                )
        elif not isinstance(given[name], str):
            raise _wrong_sqs(f"has an option {name!r} that is not text")
    key, secret = given.get("aws_access_key_id"), given.get("aws_secret_access_key")
    if bool(key) != bool(secret):
        raise _wrong_sqs("has only one of 'aws_access_key_id' and 'aws_secret_access_key': set both, or none")
    who = f"{quote(key, safe='')}:{quote(secret, safe='')}@" if key and secret else ""
    options: dict[str, Any] = {"visibility_timeout": conf.retry}
    if region := given.get("aws_region") or given.get("region_name"):
        options["region"] = region
    if _SECONDS_OF_SQS in given:
        options["wait_time_seconds"] = _waits(given[_SECONDS_OF_SQS])
    try:
        where = urlsplit(given.get("endpoint_url") or "")
        _ = where.port
    except ValueError as error:
        raise _wrong_sqs(f"has an 'endpoint_url' that is not a URL ({error})") from None
    if (
        where.scheme not in ("", "http", "https")
        or where.path.strip("/")
        or where.query
        or "@" in where.netloc
    ):
        raise _wrong_sqs("has an 'endpoint_url' with more than http:// or https://, a host and a port")
    if where.scheme == "https":
        options["is_secure"] = True
    return f"sqs://{who}{where.netloc}", {"broker_transport_options": options}


def _waits(value: Any) -> int | None:
    """Return the seconds of SQS's long polling; None for invalid values."""
    text = "" if isinstance(value, bool) else str(value)
    return int(text) if text.isdecimal() and int(text) <= _MOST_OF_SQS else None


def _meant(name: str) -> str:
    hint = close_matches(str(name), _SQS, 1)
    return f"did you mean {hint[0]!r}?" if hint else f"it can have {', '.join(_SQS)}"


def _wrong_sqs(text: str) -> ConfigurationError:
    return ConfigurationError(f"Q_CLUSTER['sqs'] {text}", setting="sqs")


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
    return f"disque://{who}{','.join(conf.disque_nodes or ())}", {"broker_transport_options": options}


def _ironmq(conf: ClusterConf) -> Found:
    given = conf.iron_mq or {}
    project, token = (quote(given.get(name, ""), safe="") for name in ("project_id", "token"))
    who = f"{project}:{token}@" if project or token else ""
    scheme = "ironmq+http" if given.get("protocol") == "http" else "ironmq"
    port = f":{given['port']}" if "port" in given else ""
    url = f"{scheme}://{who}{given.get('host', '')}{port}"
    try:
        import_object(f"{IRONMQ}:address_of")(url, os.environ)
    except ConfigurationError:
        raise ConfigurationError(
            "Q_CLUSTER['iron_mq'] needs 'project_id' and 'token', or the environment variables "
            "IRON_MQ_PROJECT_ID and IRON_MQ_TOKEN",
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
CHECKED = frozenset({"redis", "sqs", "mongo", "disque", "ironmq"})
"""Kinds whose keys url_and_options() checks without the server's client."""
