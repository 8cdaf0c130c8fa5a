"""cluster: the configuration of a cluster, read on access.

Comes from:  ``layers.py``, the environment's Q_CLUSTER_NAME, and the table ``keys.KEYS``.
Goes to:     everything in this package, as attributes of ``conf``.
Thread:      any. Values are cached on first access, until Django's signal for changed settings, which only
             tests send.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

from django.conf import settings
from django.core.signals import setting_changed

from qworker.conf.setting import Setting
from qworker.django.settings.keys import (
    KEYS,
    BrokerKeys,
    ClusterKeys,
    Derived,
    ResultKeys,
    ScheduleKeys,
    TaskKeys,
    WatchingKeys,
)
from qworker.django.settings.layers import SETTING, layers_of, masked, read, unknown_keys
from qworker.errors import ConfigurationError
from qworker.naming import did_you_mean, install_command

logger = logging.getLogger("django-q")

ENVIRONMENT = "Q_CLUSTER_NAME"
_DERIVED_FROM = frozenset({SETTING, "TIME_ZONE", "SECRET_KEY", "SECRET_KEY_FALLBACKS"})

_overrides: dict[str, Any] = {}
"""Values set on Conf, by attribute; set only by tests, in the main thread."""
_logged: set[str] = set()
"""Messages that were logged, and SETTING once all keys were checked."""


class ClusterConf(ClusterKeys, TaskKeys, ResultKeys, ScheduleKeys, BrokerKeys, WatchingKeys):
    """The configuration of one cluster, with an attribute in lower case for each key of ``keys.KEYS``, and

    - broker (str): "orm", "redis", "sqs", "disque", "ironmq", "mongo" or "custom". Raises ConfigurationError
      for a key of another broker.
    - prefix (str): the project's name, the salt of packages' signatures.
    - secret_key, secret_key_fallbacks: Django's.

    Reading an invalid value raises ConfigurationError with the key, the value and the permitted values.
    Raises AttributeError for other names.
    """

    __slots__ = ("_cluster", "_others")  # not in __dict__, which has the cached values

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = cluster
        self._others: dict[str, ClusterConf] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in KEYS and name not in DERIVED:
            raise AttributeError(f"the configuration has no {name!r}{did_you_mean(name, (*KEYS, *DERIVED))}")
        value = self._resolve(name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *KEYS, *DERIVED]

    def of(self, cluster: str | None) -> ClusterConf:
        """Return the configuration of the cluster with this name: ALT_CLUSTERS[cluster] overrides the outer
        settings, if it exists. None returns this one.
        """
        if cluster is None:
            return self
        return self._others.setdefault(cluster, ClusterConf(cluster))

    def reset(self) -> None:
        """Clear all cached values.

        For changes of Q_CLUSTER_NAME in the environment, or of Q_CLUSTER without Django's signal.
        """
        self.__dict__.clear()
        for other in self._others.values():
            other.reset()

    def is_given(self, name: str) -> bool:
        """Return whether this key is set, even to its default."""
        return name in _overrides or self._given(KEYS[name]) is not None

    def _resolve(self, name: str) -> Any:
        _log_unknown()
        if name == "cluster_name" and self._cluster:
            return self._cluster
        if name in _overrides:
            return _overrides[name]
        if name in DERIVED:
            return DERIVED[name](self)
        if name == "cluster_name" and os.environ.get(ENVIRONMENT):
            return os.environ[ENVIRONMENT]
        found = self._given(KEYS[name])
        if found is not None:
            return read(KEYS[name], *found)
        default = KEYS[name].fresh_default()
        return default.make(self) if isinstance(default, Derived) else default

    def _given(self, key: Setting) -> tuple[str, Any] | None:
        """Return where *key* is set, and its raw value; None if it is not set."""
        layers = layers_of(self._cluster or os.environ.get(ENVIRONMENT))
        return next((found for layer in layers if (found := layer.find(key))), None)


DERIVED: dict[str, Callable[[ClusterConf], Any]] = {
    "broker": lambda conf: choose(conf).broker,
    "prefix": lambda conf: conf.name,
    "secret_key": lambda _: settings.SECRET_KEY,
    "secret_key_fallbacks": lambda _: tuple(settings.SECRET_KEY_FALLBACKS),
}
"""Attributes that are not keys, and the functions that compute them."""

conf = ClusterConf()
"""The configuration of this process's cluster."""


def override(attribute: str, value: Any) -> None:
    """Set an attribute to *value*, unchecked, for every cluster, until it is restored."""
    _overrides[attribute] = value
    conf.reset()


def restore(attribute: str) -> None:
    """Undo ``override()``. Safe to call twice."""
    _overrides.pop(attribute, None)
    conf.reset()


def shown(configuration: ClusterConf = conf) -> dict[str, Any]:
    """Return all values of a configuration by name in upper case, sorted, with secrets masked.

    An invalid value is replaced by its error in parentheses.
    """
    found = {}
    for name in sorted((*KEYS, *DERIVED), key=str.upper):
        try:
            value = getattr(configuration, name)
        except ConfigurationError as error:
            value = f"({error})"
        found[name.upper()] = str(value) if name == "label" else masked(name, value)
    return found


def _log_unknown() -> None:
    """Log each unknown key once in this process."""
    if SETTING in _logged:
        return
    _logged.add(SETTING)
    for mistake in unknown_keys():
        if mistake.message not in _logged:
            _logged.add(mistake.message)
            logger.warning("%s", mistake.message)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in _DERIVED_FROM:
        _logged.discard(SETTING)
        conf.reset()


setting_changed.connect(_forget, dispatch_uid="qworker.django.conf")


# -- broker: the broker of a configuration --


class Choice(NamedTuple):
    """A key that configures a broker.

    - broker: the value of ``conf.broker`` for it.
    - title: the server's name.
    - package, extra: the client library to import, and how to install it; "" for none.
    - beside: other keys of this broker only.
    """

    key: str
    broker: str
    title: str
    package: str = ""
    extra: str = ""
    beside: tuple[str, ...] = ()


CHOICES = (
    Choice("orm", "orm", "Django's database"),
    Choice("redis", "redis", "Redis", "redis", install_command("redis")),
    Choice("django_redis", "redis", "Redis", "django_redis", "pip install django-redis"),
    Choice("sqs", "sqs", "Amazon SQS", "boto3", install_command("sqs")),
    Choice(
        "disque_nodes",
        "disque",
        "Disque",
        "redis",
        install_command("disque"),
        ("disque_auth", "disque_fastack"),
    ),
    Choice("iron_mq", "ironmq", "IronMQ", "urllib3", install_command("ironmq")),
    Choice("mongo", "mongo", "MongoDB", "pymongo", install_command("mongodb"), ("mongo_db",)),
)
ORDER = ("disque_nodes", "iron_mq", "sqs", "orm", "mongo", "django_redis", "redis")
"""Keys in the order in which Django-Q and django-q2 look for a broker."""
CUSTOM = Choice("broker_class", "custom", "a custom class")


def choose(conf: Any) -> Choice:
    """Return the broker of the configuration *conf*.

    If several are configured, the same one as in django-q2 is used; if none is, the database. Raises
    ConfigurationError for a key of another broker that is not configured.
    """
    if conf.broker_class is not None:
        return CUSTOM
    named = named_by(conf)
    choice = named[0] if named else CHOICES[0]
    for other in CHOICES:
        # Empty values (None, "", False) are ignored.
        lone = [key for key in other.beside if other not in (choice, *named) and getattr(conf, key)]
        if lone:
            raise ConfigurationError(
                f"Q_CLUSTER[{lone[0]!r}] is a key of {other.title}, but the broker is {choice.title}: set "
                f"{other.key!r} to use {other.title}, or remove {lone[0]!r}",
                setting=lone[0],
            )
    return choice


def named_by(conf: Any) -> list[Choice]:
    """Return the brokers that *conf* configures, except a custom class; the first is used."""
    by_key = {choice.key: choice for choice in CHOICES}
    # None configures no broker. An empty mapping means all defaults; except for SQS, django-q2 prefers
    # another configured broker to it.
    named = [by_key[key] for key in ORDER if getattr(conf, key) is not None]
    return sorted(named, key=lambda choice: not getattr(conf, choice.key) and choice.key != "sqs")


def missing_client(choice: Choice) -> str | None:
    """Return a sentence about what to install for *choice*; None if its client library is installed."""
    if not choice.package or find_spec(choice.package) is not None:
        return None
    return f"Q_CLUSTER['{choice.key}'] needs the package {choice.package}: {choice.extra}"
