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
LEVEL = Kind("level of logging", _level)
REDIS = Kind("mapping or URL", _redis)
CACHED = Kind("true, false or seconds, more than 1", _cached)
MAPPINGS = Kind("mapping of names to mappings", _mappings)
NODES = Kind("list of nodes", _nodes)
IRON = Kind("mapping", _iron)
DATABASE = Kind("name of a database", _database)
LABEL = Kind("text, also one to be translated", _label)


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
        "under another name are not run. Also the name of the queue, unless `cluster_name` is set.",
    )
    cluster_name: str = declare(
        TEXT,
        Derived("`name`", lambda conf: conf.name),
        "The queue of this cluster. The environment's `Q_CLUSTER_NAME` goes before it.",
    )
    ALT_CLUSTERS: dict[str, dict[str, Any]] = declare(
        MAPPINGS,
        {},
        "More clusters of the same project, by the names of their queues. Each is a mapping of the keys of "
        "this page; for missing keys the outer values apply. `Q_CLUSTER_NAME` or `qcluster --name` selects "
        "the one of a process.",
    )
    workers: int = declare(
        whole(1),
        Derived("the number of processors", lambda _: processors()),
        "Worker processes of a cluster. Where the system does not report its number of processors, psutil "
        f"is used; without it there are {FALLBACK_WORKERS}.",
    )
    daemonize_workers: bool = declare(
        BOOLEAN, True, "Read, and without effect: tasks may start processes of their own in any case."
    )
    recycle: int = declare(whole(1), 500, "Tasks that a worker process runs before a new one replaces it.")
    max_rss: int | None = declare(
        whole(1), None, "Memory in kilobytes from which a worker process is replaced, after its task."
    )
    cpu_affinity: int = declare(
        whole(0),
        0,
        "Processors that each worker process may use, in turn. 0, or as many as there are, is all.",
    )
    queue_limit: int = declare(
        whole(1),
        Derived("`workers` squared", lambda conf: conf.workers**2),
        "Tasks that one cluster holds in memory; no limit of the broker's queue.",
    )
    guard_cycle: float = declare(
        seconds(below=60), 0.5, "Read, and without effect: the death of a process is seen at once."
    )


class TaskKeys:
    """Tasks."""

    timeout: float | None = declare(
        seconds(),
        None,
        "Seconds that a task may take before its worker is ended and replaced. None is no limit. A task may "
        "have its own.",
    )
    retry: float = declare(
        seconds(),
        60,
        "Seconds that a broker with receipts waits for the end of a task before it gives it out again. With "
        "SQS, Disque and IronMQ it must be more than `timeout`.",
    )
    ack_failures: bool = declare(
        BOOLEAN,
        True,
        "True: a task that failed has been delivered. False: a broker with receipts gives it out again, as "
        "with django-q2.",
    )
    max_attempts: int = declare(
        whole(0), 0, "How many times a task is tried if failures are not acknowledged. 0 is without limit."
    )
    compress: bool = declare(BOOLEAN, False, "Compress packages with zlib.")
    sync: bool = declare(
        BOOLEAN, False, "Run every task at once in the process that calls it, without a broker. For tests."
    )


class ResultKeys:
    """Results."""

    save_limit: int = declare(
        whole(-1),
        250,
        "Successful tasks that are kept in the database; the oldest go first. 0 keeps all and -1 none. "
        "Failures are always kept.",
    )
    save_limit_per: str | None = declare(
        one_of("group", "name", "func"),
        None,
        "Count `save_limit` for each group, name or function. None counts them together.",
    )
    cached: bool | float = declare(
        CACHED,
        False,
        "Keep results in the cache instead of the database. True is without limit, a number is seconds.",
    )
    cache: str = declare(TEXT, "default", "The alias in CACHES for cached results and the monitor's data.")


class ScheduleKeys:
    """Schedules."""

    scheduler: bool = declare(BOOLEAN, True, "False stops all schedules on this cluster.")
    catch_up: bool = declare(
        BOOLEAN,
        True,
        "True: each run that was missed while no cluster was running is made up for. False: one run, and "
        "then as planned.",
    )
    time_zone: str = declare(
        TIMEZONE,
        Derived("Django's `TIME_ZONE`", lambda _: settings.TIME_ZONE),
        "The time zone of days, weeks, months and years in schedules and crontabs. Minutes and hours are "
        "the same everywhere.",
    )


class BrokerKeys:
    """Brokers."""

    orm: str | None = declare(
        TEXT,
        None,
        "The alias in DATABASES of the database that is the broker. Without any key of a broker it is "
        '`"default"`.',
    )
    redis: str | dict[str, Any] | None = declare(
        REDIS, None, "A Redis server is the broker: options of redis-py's client, or a URL."
    )
    django_redis: str | None = declare(
        TEXT, None, "A Redis server is the broker, reached through a cache of django-redis: its alias."
    )
    sqs: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "Amazon SQS is the broker: `aws_region`, `aws_access_key_id`, `aws_secret_access_key`, "
        "`receive_message_wait_time_seconds`, and `endpoint_url` of a compatible server.",
    )
    broker_class: str | None = declare(
        PATH, None, "A class of your own is the broker. It goes before every other key of a broker."
    )
    disque_nodes: tuple[str, ...] | None = declare(
        NODES,
        None,
        "Disque is the broker: its nodes, each `host:port`. Any of them is tried first, and another when "
        "that does not answer.",
    )
    disque_auth: str | None = declare(TEXT, None, "The password of Disque's nodes.")
    disque_fastack: bool = declare(
        BOOLEAN, False, "Acknowledge with FASTACK: quicker, and a task may come again when a node is cut off."
    )
    iron_mq: dict[str, Any] | None = declare(
        IRON,
        None,
        "IronMQ is the broker: `project_id` and `token`, which may be in the environment as "
        "`IRON_MQ_PROJECT_ID` and `IRON_MQ_TOKEN`; `host`, `port`, and `protocol`, which is `https`.",
    )
    mongo: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "MongoDB is the broker: options of pymongo's `MongoClient`. `host` is a name, a list of names, or a "
        "URL of mongodb:// or mongodb+srv://.",
    )
    mongo_db: str | None = declare(
        DATABASE,
        None,
        "MongoDB's database with the queues. Without it, the one in the URL that is the `host`; without "
        'that, `"django-q"`.',
    )
    bulk: int = declare(
        whole(1),
        1,
        "Messages that `Broker.dequeue()` asks for at once; of SQS up to 10, of IronMQ up to 100. A cluster "
        "takes as many as it has room for, by `queue_limit`, in one step, from every broker but one of your "
        "own: that gives what its `dequeue()` returns.",
    )
    poll: float = declare(
        seconds(),
        0.2,
        "Seconds between polls of an empty custom broker; and the wait of `Broker.dequeue()`. It has no "
        "effect on a cluster with another broker: SQLite, PostgreSQL and Redis notify of new messages at "
        "once, Disque, IronMQ and SQS use long polling (SQS for `receive_message_wait_time_seconds`), and "
        "MongoDB, MySQL and MariaDB are polled after 1 or 2 ms, and less and less often, down to every "
        "0.25 s, while nothing comes.",
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
        "Reporters of tasks' errors: names of plugins (entry points of the group "
        "`djangoq.errorreporters`), each with its options.",
    )
    rollbar: dict[str, Any] | None = declare(
        MAPPING,
        None,
        "Errors of tasks are reported to Rollbar: `access_token`, `environment`, and options of "
        "`rollbar.init`. It needs the package rollbar.",
    )
    testing: bool = declare(BOOLEAN, False, "Read, and without effect.")


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
