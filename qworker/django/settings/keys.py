"""keys: every key of Q_CLUSTER, declared once.

Comes from:  Django-Q's manual, and what django-q2 added to it.
Goes to:     ``conf.py``, which reads values by it; ``checks.py``; the reference page, by docs/generate.py.
Thread:      any; never changed.
"""

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

from django.conf import settings

from qworker.conf.kinds import BOOLEAN, MAPPING, TEXT, TIMEZONE, Kind
from qworker.django.settings.kinds import (
    CACHED,
    DATABASE,
    IRON,
    LABEL,
    LEVEL,
    MAPPINGS,
    NODES,
    PATH,
    REDIS,
    one_of,
    seconds,
    whole,
)

FALLBACK_WORKERS = 4
"""How many workers there are where nobody knows how many processors there are."""


class Key(NamedTuple):
    """The declaration of one key.

    - name: as it is written in Q_CLUSTER; the attribute of ``conf`` is the same in lower case.
    - section: the heading that it stands under in the reference.
    - kind: what it takes, in words, and the function that reads a value.
    - default: the value of a key that is left out, or a function that makes it of the configuration.
    - shown: how the reference tells a default that a function makes; "" for any other.
    - alternative (bool): ALT_CLUSTERS may give it another value.
    """

    name: str
    section: str
    kind: Kind
    default: Any
    meaning: str
    shown: str = ""
    alternative: bool = True

    @property
    def attribute(self) -> str:
        """What ``conf`` calls it."""
        return self.name.lower()

    @property
    def nullable(self) -> bool:
        """Whether None may be given, and means None."""
        return self.default is None

    def default_of(self, configuration: Any) -> Any:
        """The default, a new one each time where it could be changed."""
        if callable(self.default):
            return self.default(configuration)
        return self.default.copy() if isinstance(self.default, dict) else self.default

    def read(self, value: Any) -> Any:
        """Return what *value* means. ValueError, which says what it must be, when it means nothing."""
        return None if value is None and self.nullable else self.kind.read(value)


# -- defaults that depend on something --


def processors(ask: Iterable[Callable[[], int | None]] | None = None) -> int:
    """How many processors this machine has.

    ask: functions that may know, and give None or raise when they do not. The first that knows is believed;
    where none does it is FALLBACK_WORKERS.
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


# -- the table --

_CLUSTER, _TASKS, _RESULTS, _SCHEDULES = "The cluster", "Tasks", "Results", "Schedules"
_BROKER, _WATCHING = "Brokers", "Watching"

_DECLARED = (
    Key(
        "name",
        _CLUSTER,
        TEXT,
        "default",
        "Tells projects apart that share a broker. It is the salt of signed packages: what was signed under "
        "another name is not run. Also the name of the queue, but for `cluster_name`.",
        alternative=False,
    ),
    Key(
        "cluster_name",
        _CLUSTER,
        TEXT,
        lambda conf: conf.name,
        "The queue of this cluster. The environment's `Q_CLUSTER_NAME` goes before it.",
        shown="`name`",
        alternative=False,
    ),
    Key(
        "ALT_CLUSTERS",
        _CLUSTER,
        MAPPINGS,
        {},
        "More clusters of the same project, by the names of their queues. Each is a mapping of the keys of "
        "this page; what it leaves out is as outside. `Q_CLUSTER_NAME` or `qcluster --name` says which one a "
        "process is.",
        alternative=False,
    ),
    Key(
        "workers",
        _CLUSTER,
        whole(1),
        lambda _: processors(),
        f"Worker processes of a cluster. Where the system does not say how many processors it has, psutil is "
        f"asked; where that is missing there are {FALLBACK_WORKERS}.",
        shown="the number of processors",
    ),
    Key(
        "daemonize_workers",
        _CLUSTER,
        BOOLEAN,
        True,
        "Read, and without effect: tasks may start processes of their own in any case.",
    ),
    Key("recycle", _CLUSTER, whole(1), 500, "Tasks that a worker process runs before a new one replaces it."),
    Key(
        "max_rss",
        _CLUSTER,
        whole(1),
        None,
        "Memory in kilobytes from which a worker process is replaced, after its task.",
    ),
    Key(
        "cpu_affinity",
        _CLUSTER,
        whole(0),
        0,
        "Processors that each worker process may use, in turn. 0, or as many as there are, is all.",
    ),
    Key(
        "queue_limit",
        _CLUSTER,
        whole(1),
        lambda conf: conf.workers**2,
        "Tasks that one cluster holds in memory; no limit of the broker's queue.",
        shown="`workers` squared",
    ),
    Key(
        "guard_cycle",
        _CLUSTER,
        seconds(below=60),
        0.5,
        "Read, and without effect: the death of a process is seen at once.",
    ),
    Key(
        "timeout",
        _TASKS,
        seconds(),
        None,
        "Seconds that a task may take before its worker is ended and replaced. None is no limit. A task may "
        "have its own.",
    ),
    Key(
        "retry",
        _TASKS,
        seconds(),
        60,
        "Seconds that a broker with receipts waits for the end of a task before it gives it out again. With "
        "SQS, Disque and IronMQ it must be more than `timeout`.",
    ),
    Key(
        "ack_failures",
        _TASKS,
        BOOLEAN,
        True,
        "True: a task that failed has been delivered. False: a broker with receipts gives it out again, as "
        "with django-q2.",
    ),
    Key(
        "max_attempts",
        _TASKS,
        whole(0),
        0,
        "How often a task is tried whose failures are not acknowledged. 0 is without end.",
    ),
    Key("compress", _TASKS, BOOLEAN, False, "Compress packages with zlib."),
    Key(
        "sync",
        _TASKS,
        BOOLEAN,
        False,
        "Run every task at once in the process that calls it, without a broker. For tests.",
    ),
    Key(
        "save_limit",
        _RESULTS,
        whole(-1),
        250,
        "Successful tasks that are kept in the database; the oldest go first. 0 keeps all and -1 none. "
        "Failures are always kept.",
    ),
    Key(
        "save_limit_per",
        _RESULTS,
        one_of("group", "name", "func"),
        None,
        "Count `save_limit` for each group, name or function. None counts them together.",
    ),
    Key(
        "cached",
        _RESULTS,
        CACHED,
        False,
        "Keep results in the cache in place of the database. True is for ever, a number is seconds.",
    ),
    Key(
        "cache",
        _RESULTS,
        TEXT,
        "default",
        "The alias in CACHES that keeps cached results and what the monitor shows.",
    ),
    Key("scheduler", _SCHEDULES, BOOLEAN, True, "False stops all schedules on this cluster."),
    Key(
        "catch_up",
        _SCHEDULES,
        BOOLEAN,
        True,
        "True: runs that were missed while no cluster was there are made up for, each of them. False: "
        "one run, and then as planned.",
    ),
    Key(
        "time_zone",
        _SCHEDULES,
        TIMEZONE,
        lambda _: settings.TIME_ZONE,
        "The time zone whose days, weeks, months and years schedules follow, and their crontabs. Minutes and "
        "hours are the same everywhere.",
        shown="Django's `TIME_ZONE`",
    ),
    Key(
        "orm",
        _BROKER,
        TEXT,
        None,
        "The alias in DATABASES of the database that is the broker. Without any key of a broker it is "
        '`"default"`.',
    ),
    Key(
        "redis",
        _BROKER,
        REDIS,
        None,
        "A Redis server is the broker: options of redis-py's client, or a URL.",
    ),
    Key(
        "django_redis",
        _BROKER,
        TEXT,
        None,
        "A Redis server is the broker, reached through a cache of django-redis: its alias.",
    ),
    Key(
        "sqs",
        _BROKER,
        MAPPING,
        None,
        "Amazon SQS is the broker: `aws_region`, `aws_access_key_id`, `aws_secret_access_key`, "
        "`receive_message_wait_time_seconds`, and `endpoint_url` of a server that speaks as SQS does.",
    ),
    Key(
        "broker_class",
        _BROKER,
        PATH,
        None,
        "A class of your own is the broker. It goes before every other key of a broker.",
    ),
    Key(
        "disque_nodes",
        _BROKER,
        NODES,
        None,
        "Disque is the broker: its nodes, each `host:port`. Any of them is asked first, and another when "
        "that does not answer.",
    ),
    Key("disque_auth", _BROKER, TEXT, None, "The password of Disque's nodes."),
    Key(
        "disque_fastack",
        _BROKER,
        BOOLEAN,
        False,
        "Acknowledge with FASTACK: quicker, and a task may come again when a node is cut off.",
    ),
    Key(
        "iron_mq",
        _BROKER,
        IRON,
        None,
        "IronMQ is the broker: `project_id` and `token`, which may stand in the environment as "
        "`IRON_MQ_PROJECT_ID` and `IRON_MQ_TOKEN`; `host`, `port`, and `protocol`, which is `https`.",
    ),
    Key(
        "mongo",
        _BROKER,
        MAPPING,
        None,
        "MongoDB is the broker: options of pymongo's `MongoClient`. `host` is a name, a list of names, or a "
        "URL of mongodb:// or mongodb+srv://.",
    ),
    Key(
        "mongo_db",
        _BROKER,
        DATABASE,
        None,
        "MongoDB's database with the queues. Without it, the one in the URL that is the `host`; without "
        'that, `"django-q"`.',
    ),
    Key(
        "bulk",
        _BROKER,
        whole(1),
        1,
        "Messages that `Broker.dequeue()` asks for at once; of SQS up to 10, of IronMQ up to 100. A cluster "
        "takes as many as it has room for, by `queue_limit`, in one step, from every broker but one of your "
        "own: that gives what its `dequeue()` returns.",
    ),
    Key(
        "poll",
        _BROKER,
        seconds(),
        0.2,
        "Seconds that pass before an empty broker of your own is asked again; and for which "
        "`Broker.dequeue()` waits. It means nothing to a cluster on another broker: SQLite, PostgreSQL and "
        "Redis tell of new messages at once, Disque, IronMQ and SQS keep the question open (SQS for "
        "`receive_message_wait_time_seconds`), and MongoDB, MySQL and MariaDB are asked after 1 or 2 ms, and "
        "more and more seldom, up to 0.25 s, while nothing comes.",
    ),
    Key("label", _WATCHING, LABEL, "Django Q", "The heading of the tables in Django's admin."),
    Key(
        "log_level",
        _WATCHING,
        LEVEL,
        "INFO",
        "The level of the logger `django-q`, where LOGGING does not say it.",
    ),
    Key(
        "error_reporter",
        _WATCHING,
        MAPPINGS,
        {},
        "Who is told of errors of tasks: names of plugins (entry points of the group "
        "`djangoq.errorreporters`), each with its options.",
    ),
    Key(
        "rollbar",
        _WATCHING,
        MAPPING,
        None,
        "Errors of tasks are reported to Rollbar: `access_token`, `environment`, and options of "
        "`rollbar.init`. It needs the package rollbar.",
    ),
    Key("testing", _WATCHING, BOOLEAN, False, "Read, and without effect."),
)

KEYS = {key.attribute: key for key in _DECLARED}
"""Every key, by what ``conf`` calls it."""
SPELLINGS = {"ack_failure": "ack_failures", "compressed": "compress", "alt_clusters": "ALT_CLUSTERS"}
"""Other spellings that are read, and how the key is spelled."""
