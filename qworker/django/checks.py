"""checks: Django's system checks of the configuration.

Comes from:  ``conf`` and Django's own settings.
Goes to:     Django, before each of its commands, under the tag "qworker".
Thread:      the main one, at start.
Checks send no requests to servers, and report only certain problems.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.checks import register as register_with_django
from django.db import DEFAULT_DB_ALIAS

from qworker.django.brokers.choice import custom_class
from qworker.django.conf import ClusterConf, conf
from qworker.django.execution.reporters import options_of_reporters, reporter_class
from qworker.django.labels import PREDECESSOR
from qworker.django.settings.cluster import CHOICES, CUSTOM, choose, missing_client, named_by
from qworker.django.settings.layers import (
    Mistake,
    alternatives,
    ignored_keys,
    other_spellings,
    unknown_keys,
    wrong_values,
)
from qworker.django.transports.databases import check_options
from qworker.django.transports.urls import CHECKED, url_and_options
from qworker.errors import ConfigurationError

TAG = "qworker"
_UNSHARED = ("LocMemCache", "DummyCache")
"""Class names of caches that are not shared between processes."""
_LOCKING = ("IMMEDIATE", "EXCLUSIVE")
"""Modes in which an SQLite transaction takes the write lock before it reads."""
_MOST = {"sqs": ("SQS", 10), "ironmq": ("IronMQ", 100)}
"""By kind of broker: the server's name, and how many messages it returns at most."""

Messages = list[CheckMessage]


def check_values(**_: Any) -> Messages:
    """E001: invalid values."""
    return [Error(mistake.message, id="qworker.E001") for mistake in wrong_values()]


def check_keys(**_: Any) -> Messages:
    """W001: unknown keys. W002: alternative spellings. W003: keys without effect in ALT_CLUSTERS."""
    warnings: tuple[tuple[str, str, list[Mistake]], ...] = (
        ("qworker.W001", "Correct or remove the key.", unknown_keys()),
        ("qworker.W002", "Rename the key; the old spelling still works.", other_spellings()),
        ("qworker.W003", "Remove it from ALT_CLUSTERS.", ignored_keys()),
    )
    return [
        Warning(mistake.message, hint=hint, id=number)
        for number, hint, mistakes in warnings
        for mistake in mistakes
    ]


def check_broker(**_: Any) -> Messages:
    """E002: an unusable broker. E011: a ``bulk`` above the server's maximum. W004: brokers that are not
    used."""
    found: Messages = []
    for where, configuration in _clusters():
        try:
            choice = choose(configuration)
            unused = [each.key for each in named_by(configuration) if each is not choice]
            if unused and choice is not CUSTOM:
                found.append(
                    Warning(
                        f"{where} configures more than one broker: {choice.key!r} is used, as in django-q2, "
                        f"instead of {' and '.join(map(repr, unused))}",
                        hint="Remove the unused keys.",
                        id="qworker.W004",
                    )
                )
            if configuration.broker_class is not None:
                custom_class(configuration.broker_class)
            if sentence := missing_client(choice):
                raise ConfigurationError(sentence)
            if choice.broker == "orm":
                _check_database(configuration.orm or DEFAULT_DB_ALIAS)
            elif choice.broker in CHECKED and not _lacks_cache(configuration):
                url_and_options(choice.broker, configuration)
            title, most = _MOST.get(choice.broker, ("", math.inf))
            if configuration.bulk > most:
                found.append(
                    Error(
                        f"{where}: 'bulk' is {configuration.bulk}, but {title} returns at most {most}",
                        id="qworker.E011",
                    )
                )
        except ConfigurationError as error:
            if error.setting is None or not _is_wrong(error.setting):
                found.append(Error(f"{where}: {error}", id="qworker.E002"))
        except ImportError as error:
            found.append(
                Error(f"{where}: {configuration.broker_class} cannot be imported: {error}", id="qworker.E002")
            )
    return found


def _check_database(alias: str) -> None:
    if alias in settings.DATABASES:  # E004 reports others
        check_options(alias)


def _lacks_cache(configuration: ClusterConf) -> bool:
    """Return whether the broker's cache does not exist, which E004 reports."""
    return configuration.django_redis is not None and configuration.django_redis not in settings.CACHES


def check_neighbour(**_: Any) -> Messages:
    """E003: Django-Q itself is installed, too."""
    if not any(config.name == "django_q" for config in apps.get_app_configs()):
        return []
    return [
        Error(
            "INSTALLED_APPS contains both qworker.django and django_q, which it replaces",
            hint="Remove django_q.",
            id="qworker.E003",
        )
    ]


def check_aliases(**_: Any) -> Messages:
    """E004: aliases of databases and caches that do not exist."""
    found: Messages = []
    named = (("orm", "DATABASES"), ("cache", "CACHES"), ("django_redis", "CACHES"))
    for where, configuration in _clusters():
        for key, setting in named:
            alias = _value(configuration, key)
            if alias is not None and alias not in getattr(settings, setting):
                found.append(
                    Error(f"{where}: {key!r} is {alias!r}, which is not in {setting}", id="qworker.E004")
                )
    return found


BY_TIME = frozenset(["sqs", "disque", "ironmq"])
"""Brokers that redeliver a task after ``retry`` seconds, even if its cluster is alive."""


def check_retry(**_: Any) -> Messages:
    """E010: ``retry`` is not longer than ``timeout``."""
    found: Messages = []
    for where, configuration in _clusters():
        if not (_is_given(configuration, "retry") and _is_given(configuration, "timeout")):
            continue
        if _value(configuration, "broker") not in BY_TIME:
            continue  # a live cluster keeps its tasks
        retry, timeout = _value(configuration, "retry"), _value(configuration, "timeout")
        if retry is not None and timeout is not None and retry <= timeout:
            found.append(
                Error(
                    f"{where}: 'retry' is {retry} s and 'timeout' is {timeout} s, so a task may be "
                    "redelivered while it is running",
                    hint="Make retry longer than timeout.",
                    id="qworker.E010",
                )
            )
    return found


def check_reporters(**_: Any) -> Messages:
    """E014: error reporters that are not installed."""
    found: Messages = []
    try:
        names = list(options_of_reporters())
    except ConfigurationError:
        return []  # E001 reports it
    for name in names:
        try:
            reporter_class(name)
        except (ConfigurationError, ImportError) as error:
            found.append(Error(str(error), id="qworker.E014"))
    return found


def check_cache(**_: Any) -> Messages:
    """E015: results go to a cache that is not shared between processes."""
    found: Messages = []
    for where, configuration in _clusters():
        alias = _value(configuration, "cache")
        backend = str(settings.CACHES.get(alias, {}).get("BACKEND", ""))
        if _value(configuration, "cached") and backend.endswith(_UNSHARED):
            found.append(
                Error(
                    f"{where}: 'cached' is set, but the cache {alias!r} is a {backend.rpartition('.')[2]}, "
                    "which is not shared between processes",
                    hint="Use a shared cache, such as Django's RedisCache or DatabaseCache.",
                    id="qworker.E015",
                )
            )
    return found


def check_connections(**_: Any) -> Messages:
    """W013: persistent connections without health checks."""
    found: Messages = []
    for alias, database in settings.DATABASES.items():
        age = database.get("CONN_MAX_AGE", 0)
        kept = "CONN_MAX_AGE" if age is None or (isinstance(age, int | float) and age > 0) else "pool"
        if (kept != "pool" or _options(database).get("pool")) and not database.get("CONN_HEALTH_CHECKS"):
            found.append(
                Warning(
                    f"DATABASES[{alias!r}] keeps connections open ({kept}) without CONN_HEALTH_CHECKS: a "
                    "task may get a connection that the server has closed",
                    hint="Set CONN_HEALTH_CHECKS to True.",
                    id="qworker.W013",
                )
            )
    return found


def check_changed_defaults(**_: Any) -> Messages:
    """W006: a project moved from django-q2 relies on a default that is different here."""
    config = apps.get_containing_app_config(__name__)
    if config is None or config.label != PREDECESSOR:
        return []
    found: Messages = []
    if not _is_given(conf, "ack_failures"):
        found.append(
            Warning(
                "Q_CLUSTER does not set 'ack_failures': in django-q2 the default is False, and failed tasks "
                "run again; in qworker it is True, and they do not",
                hint="Set 'ack_failures' to True or False.",
                id="qworker.W006",
            )
        )
    if not any(_is_given(conf, choice.key) for choice in (CUSTOM, *CHOICES)):
        found.append(
            Warning(
                "Q_CLUSTER does not configure a broker: in django-q2 the default is Redis on this machine, "
                "in qworker it is the database 'default'",
                hint="Set 'orm' or 'redis'.",
                id="qworker.W006",
            )
        )
    return found


def check_deployment(**_: Any) -> Messages:
    """For deployments. W033: tasks run in the caller. W034: the results table is unlimited. W035: an SQLite
    transaction that reads first may fail to write."""
    found: Messages = []
    for where, configuration in _clusters():
        if _value(configuration, "sync") and not settings.DEBUG:
            found.append(
                Warning(f"{where}: 'sync' is True: tasks run in the calling process", id="qworker.W033")
            )
        if _value(configuration, "save_limit") == 0:
            found.append(
                Warning(f"{where}: 'save_limit' is 0: all successful tasks are kept", id="qworker.W034")
            )
    found += [
        Warning(
            f"DATABASES[{alias!r}] is an SQLite database with deferred transactions: a transaction that "
            'reads before it calls async_task() may fail with "database is locked" at once, whatever the '
            "timeout is",
            hint="Set OPTIONS['transaction_mode'] to 'IMMEDIATE' (Django 5.1 and later).",
            id="qworker.W035",
        )
        for alias, database in settings.DATABASES.items()
        if str(database.get("ENGINE")).endswith("sqlite3")
        and str(_options(database).get("transaction_mode")).upper() not in _LOCKING
    ]
    return found


_ALWAYS: Sequence[Callable[..., Messages]] = (
    check_values,
    check_keys,
    check_broker,
    check_neighbour,
    check_aliases,
    check_retry,
    check_reporters,
    check_cache,
    check_connections,
    check_changed_defaults,
)


def register() -> None:
    """Register all checks. Safe to call twice."""
    for check in _ALWAYS:
        register_with_django(check, TAG)
    register_with_django(check_deployment, TAG, deploy=True)


def _clusters() -> Iterator[tuple[str, ClusterConf]]:
    """Yield the display name and configuration of each cluster: Q_CLUSTER itself, and each in ALT_CLUSTERS
    with its own settings."""
    yield "Q_CLUSTER", conf
    try:
        found: Mapping[str, Any] = alternatives()
    except ConfigurationError:
        return  # E001 reports it
    for cluster, layer in found.items():
        if layer.values:
            yield layer.where, conf.of(cluster)


def _value(configuration: ClusterConf, name: str) -> Any:
    """Return a value; None if it is invalid, which E001 reports."""
    try:
        return getattr(configuration, name)
    except ConfigurationError:
        return None


def _options(database: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the OPTIONS of a database; {} if they are not a mapping, which E002 reports for the broker."""
    options = database.get("OPTIONS")
    return options if isinstance(options, Mapping) else {}


def _is_given(configuration: ClusterConf, name: str) -> bool:
    try:
        return configuration.is_given(name)
    except ConfigurationError:
        return False


def _is_wrong(key: str) -> bool:
    return any(mistake.key == key for mistake in wrong_values())
