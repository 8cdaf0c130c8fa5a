"""keys: declares every key of Q_CLUSTER.

Comes from:  Django-Q's manual, and django-q2's additions.
Goes to:     ``cluster.py``, for its attributes; ``layers.py``, which reads values; docs/generate.py, for the
             reference page.
Thread:      any; constants.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from logging import getLevelNamesMapping
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.functional import Promise

from qworker.conf.kinds import BOOLEAN, INTEGER, MAPPING, NAMES, TEXT, TIMEZONE, Kind
from qworker.conf.setting import collect, declare
from qworker.naming import did_you_mean

# -- kinds: types of values, in addition to those of ``qworker.conf.kinds`` --
# Thread: any; pure functions.


def whole(least: int) -> Kind:
    """Whole numbers, *least* or more."""

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
    """Seconds, more than 0 and less than *below*. An int stays an int."""
    label = "seconds, more than 0" + ("" if below == math.inf else f" and less than {below:g}")

    def read(value: Any) -> float:
        number = _number(value)
        if number is None or not 0 < number < below:
            raise ValueError(f"must be {label}")
        return number

    return Kind(label, read)


def _number(value: Any) -> float | None:
    """Return the number in a number, text or timedelta; None if there is none."""
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
        raise ValueError('must be a logging level, such as "INFO" or "DEBUG"')
    return name


def _redis(value: Any) -> str | dict[str, Any]:
    if isinstance(value, str) and value.partition("://")[0] in ("redis", "rediss", "unix"):
        return value
    try:
        return dict(MAPPING.read(value))
    except ValueError:
        raise ValueError(
            "must be a mapping of redis-py's connection options, or a redis://, rediss:// or unix:// URL"
        ) from None


def _cached(value: Any) -> bool | float:
    number = _number(value)
    if not isinstance(value, bool) and number is not None and number > 1:
        return number
    try:
        return bool(BOOLEAN.read(value))
    except ValueError:
        raise ValueError("must be true, false, or the seconds to keep results, more than 1") from None


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
            'must be a list of nodes, each "host:port" or "host"; set the password in disque_auth'
        )
    return nodes


def _is_node(node: str) -> bool:
    match = _NODE.fullmatch(node)
    return match is not None and (match[2] is None or _is_port(match[2][1:]))


def _is_port(value: Any) -> bool:
    return isinstance(value, int | str) and str(value).isdecimal() and 0 < int(value) < 65536


_IRON: dict[str, tuple[str, Any]] = {
    "host": ("a host name", lambda value: isinstance(value, str) and _HOST.fullmatch(value)),
    "port": ("a port number", _is_port),
    "protocol": ('"https" or "http"', lambda value: value in ("https", "http")),
    "project_id": ("text", lambda value: isinstance(value, str)),
    "token": ("text", lambda value: isinstance(value, str)),
    "api_version": ("3, the only supported version of IronMQ", lambda value: str(value) == "3"),
}
"""The options of IronMQ, with their requirement and its check."""


def _iron(value: Any) -> dict[str, Any]:
    try:
        given = {name: option for name, option in MAPPING.read(value).items() if option is not None}
    except ValueError:
        raise ValueError(f"must be a mapping with {', '.join(_IRON)}") from None
    for name, option in given.items():
        if name not in _IRON:
            hint = did_you_mean(name, _IRON, f"; it can have {', '.join(_IRON)}")
            raise ValueError(f"has the unknown option {name!r}{hint}")
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
LEVEL = Kind("logging level", _level)
REDIS = Kind("mapping or URL", _redis)
CACHED = Kind("true, false or seconds, more than 1", _cached)
MAPPINGS = Kind("mapping of names to mappings", _mappings)
NODES = Kind("list of nodes", _nodes)
IRON = Kind("mapping", _iron)
DATABASE = Kind("database name", _database)
LABEL = Kind("text, or a lazy translation", _label)


FALLBACK_WORKERS = 4
"""The number of workers if the number of processors is unknown."""


# -- computed defaults --


class Derived(NamedTuple):
    """A default computed from the configuration by *make*. shown: its text in the reference."""

    shown: str
    make: Callable[[Any], Any]


def processors(ask: Iterable[Callable[[], int | None]] | None = None) -> int:
    """Return how many processors this machine has.

    ask: functions that return the number, or return None or raise if it is unknown. The first number is used;
    without any, FALLBACK_WORKERS.
    """
    for count in (os.cpu_count, _psutil_count) if ask is None else ask:
        try:
            if found := count():
                return found
        except (NotImplementedError, ImportError, OSError):
            continue
    return FALLBACK_WORKERS


def _psutil_count() -> int | None:
    return import_module("psutil").cpu_count()  # type: ignore[no-any-return]


# -- the declarations --
# SECTIONS collects the declarations from the classes.


class ClusterKeys:
    """The cluster."""

    name: str = declare(
        TEXT,
        "default",
        "Distinguishes projects that share a broker. It is the salt of signed packages: packages signed "
        "under another name are rejected. Also the name of the queue, unless `cluster_name` is set.",
    )
    cluster_name: str = declare(
        TEXT,
        Derived("`name`", lambda conf: conf.name),
        "The queue of this cluster. The environment variable `Q_CLUSTER_NAME` overrides it.",
    )
    ALT_CLUSTERS: dict[str, dict[str, Any]] = declare(
        MAPPINGS,
        {},
        "More clusters of the same project, by the names of their queues. Each is a mapping of the keys on "
        "this page; missing keys have the values of `Q_CLUSTER`. `Q_CLUSTER_NAME` or `qcluster --name` "
        "selects the cluster of a process.",
    )
    workers: int = declare(
        whole(1),
        Derived("the number of processors", lambda _: processors()),
        "Number of worker processes. The operating system or psutil reports the number of processors; if "
        f"neither does, the default is {FALLBACK_WORKERS}.",
    )
    daemonize_workers: bool = declare(
        BOOLEAN, True, "Accepted, but has no effect: tasks can always start child processes."
    )
    recycle: int = declare(whole(1), 500, "Number of tasks after which a worker process is replaced.")
    max_rss: int | None = declare(
        whole(1),
        None,
        "Memory in kilobytes. A worker process that uses more after a task is replaced. None is no limit.",
    )
    cpu_affinity: int = declare(
        whole(0),
        0,
        "Number of processors to which each worker process is pinned. 0 does not pin them.",
    )
    queue_limit: int = declare(
        whole(1),
        Derived("`workers` squared", lambda conf: conf.workers**2),
        "Maximum number of tasks that one cluster holds in memory. It does not limit the broker's queue.",
    )
    guard_cycle: float = declare(
        seconds(below=60), 0.5, "Accepted, but has no effect: the death of a process is noticed at once."
    )


class TaskKeys:
    """Tasks."""

    timeout: float | None = declare(
        seconds(),
        None,
        "Seconds after which a running task is stopped: its worker process is killed and replaced. None is "
        "no limit. The option `timeout` of a task overrides it.",
    )
    retry: float = declare(
        seconds(),
        60,
        "Seconds until a failed task runs again, if `ack_failures` is False. SQS, Disque and IronMQ, and "
        "`Broker.dequeue()` with any broker, also redeliver a task that is not acknowledged within this "
        "time. With SQS, Disque and IronMQ it must be longer than `timeout`.",
    )
    ack_failures: bool = declare(
        BOOLEAN,
        True,
        "Whether failed tasks are acknowledged. True: they do not run again. False: they run again after "
        "`retry` seconds, which is the default in django-q2.",
    )
    max_attempts: int = declare(
        whole(0), 0, "Maximum number of attempts of a task, if `ack_failures` is False. 0 is no limit."
    )
    compress: bool = declare(BOOLEAN, False, "Compress packages with zlib.")
    sync: bool = declare(
        BOOLEAN, False, "Run each task immediately in the calling process, without a broker. For tests."
    )


class ResultKeys:
    """Results."""

    save_limit: int = declare(
        whole(-1),
        250,
        "Maximum number of successful tasks in the database; the oldest are deleted. 0 keeps all, and -1 "
        "none. Failures are always kept.",
    )
    save_limit_per: str | None = declare(
        one_of("group", "name", "func"),
        None,
        "Apply `save_limit` to each group, name or function. None applies it to all tasks together.",
    )
    cached: bool | float = declare(
        CACHED,
        False,
        "Store results in the cache instead of the database: for a number of seconds, or True for no limit.",
    )
    cache: str = declare(
        TEXT, "default", "The alias in CACHES of the cache for results and for the monitor's data."
    )


class ScheduleKeys:
    """Schedules."""

    scheduler: bool = declare(BOOLEAN, True, "Whether this cluster runs schedules.")
    catch_up: bool = declare(
        BOOLEAN,
        True,
        "What happens to runs that were missed while no cluster was running. True: all are made up for. "
        "False: the schedule runs once, then at its next regular time.",
    )
    time_zone: str = declare(
        TIMEZONE,
        Derived("Django's `TIME_ZONE`", lambda _: settings.TIME_ZONE),
        "The time zone of crontabs, and of schedules by days, weeks, months and years. Schedules by minutes "
        "and hours do not depend on it.",
    )


class BrokerKeys:
    """Brokers."""

    orm: str | None = declare(
        TEXT,
        None,
        "Use a database as the broker: its alias in DATABASES. If no broker is configured, the database "
        '`"default"` is used.',
    )
    redis: str | dict[str, Any] | None = declare(
        REDIS, None, "Use Redis as the broker: a mapping of options of redis-py's client, or a URL."
    )
    django_redis: str | None = declare(
        TEXT, None, "Use the Redis server of a django-redis cache as the broker: the cache's alias in CACHES."
    )
    sqs: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "Use Amazon SQS as the broker. Options: `aws_region`, `aws_access_key_id`, `aws_secret_access_key`, "
        "`receive_message_wait_time_seconds`, and `endpoint_url` for a compatible server.",
    )
    broker_class: str | None = declare(
        PATH, None, "Use a custom class as the broker: its dotted path. It overrides all other broker keys."
    )
    disque_nodes: tuple[str, ...] | None = declare(
        NODES,
        None,
        "Use Disque as the broker: a list of its nodes, each `host:port`. A random node is tried first, and "
        "another one if it does not answer.",
    )
    disque_auth: str | None = declare(TEXT, None, "The password of Disque's nodes.")
    disque_fastack: bool = declare(
        BOOLEAN, False, "Acknowledge with FASTACK: faster, but a network failure may deliver a task twice."
    )
    iron_mq: dict[str, Any] | None = declare(
        IRON,
        None,
        "Use IronMQ as the broker. Options: `project_id` and `token` (or the environment variables "
        "`IRON_MQ_PROJECT_ID` and `IRON_MQ_TOKEN`), `host`, `port`, and `protocol` (`https` by default).",
    )
    mongo: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "Use MongoDB as the broker: a mapping of options of pymongo's `MongoClient`. `host` is a name, a "
        "list of names, or a mongodb:// or mongodb+srv:// URL.",
    )
    mongo_db: str | None = declare(
        DATABASE,
        None,
        "The MongoDB database with the queues. By default, the database in the URL of `host`, or "
        '`"django-q"` if the URL has none.',
    )
    bulk: int = declare(
        whole(1),
        1,
        "Maximum number of messages that `Broker.dequeue()` takes at once; at most 10 with SQS, and 100 with "
        "IronMQ. A cluster is not limited by it, but by `queue_limit`, except with a custom broker, whose "
        "`dequeue()` decides.",
    )
    poll: float = declare(
        seconds(),
        0.2,
        "Seconds between polls of an empty custom broker, and for which `Broker.dequeue()` waits for a "
        "message. It has no effect on clusters with other brokers: SQLite, PostgreSQL and Redis notify of "
        "new messages at once; Disque, IronMQ and SQS use long polling (SQS for "
        "`receive_message_wait_time_seconds`); MongoDB, MySQL and MariaDB are polled every 1 or 2 ms at "
        "first, and less often, down to every 0.25 s, while the queue is empty.",
    )


class WatchingKeys:
    """Watching."""

    label: str | Promise = declare(LABEL, "Django Q", "The heading of the tables in Django's admin.")
    log_level: str | int = declare(
        LEVEL, "INFO", "The level of the logger `django-q`, unless LOGGING sets it."
    )
    error_reporter: dict[str, dict[str, Any]] = declare(
        MAPPINGS,
        {},
        "Error reporters for failed tasks: names of plugins (entry points of the group "
        "`djangoq.errorreporters`), each with a mapping of its options.",
    )
    rollbar: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "Report errors of tasks to Rollbar. Options: `access_token`, `environment`, and others of "
        "`rollbar.init`. Needs the package rollbar.",
    )
    testing: bool = declare(BOOLEAN, False, "Accepted, but has no effect.")


SECTIONS = {
    "The cluster": collect(ClusterKeys),
    "Tasks": collect(TaskKeys),
    "Results": collect(ResultKeys),
    "Schedules": collect(ScheduleKeys),
    "Brokers": collect(BrokerKeys),
    "Watching": collect(WatchingKeys),
}
"""The declarations by name, for each heading in the reference."""
KEYS = {name.lower(): key for section in SECTIONS.values() for name, key in section.items()}
"""All keys, by their attribute in ``conf``."""
SAME_FOR_ALL = ("name", "cluster_name", "ALT_CLUSTERS")
"""Keys that have no effect in ALT_CLUSTERS."""
SPELLINGS = {"ack_failure": "ack_failures", "compressed": "compress", "alt_clusters": "ALT_CLUSTERS"}
"""Alternative spellings that are accepted, and the key's own."""
