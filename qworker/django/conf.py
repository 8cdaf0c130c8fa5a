"""conf: the configuration for other modules, and Django-Q's own interface to it.

Comes from:  ``settings/cluster.py``.
Goes to:     everything in this package, as ``conf``; Django-Q's users and their tests, as Conf.
Thread:      any.
"""

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

from qworker.django.settings.cluster import DERIVED, ENVIRONMENT, ClusterConf, conf, override, restore, shown
from qworker.django.settings.keys import KEYS
from qworker.django.settings.layers import root

__all__ = ["ClusterConf", "Conf", "conf", "logger", "prepare_logger", "shown"]

logger = logging.getLogger("django-q")

_FACADE = {"COMPRESSED": "compress"}
"""Names in Conf that differ from the key's name."""
_MADE: dict[str, Callable[[], Any]] = {
    "Q_STAT": lambda: f"django_q:{conf.prefix}:cluster",
    "REDIS": lambda: {} if conf.redis is None else conf.redis,
    "ROLLBAR": lambda: conf.rollbar or {},
    "conf": lambda: dict(root().values),
    "_Q_CLUSTER_NAME": lambda: os.environ.get(ENVIRONMENT),
}
"""Attributes of Conf that are not in ``conf``, and the functions that compute them."""


def _attribute(name: str) -> str | None:
    """Return the attribute of ``conf`` for an attribute of Conf; None if there is none."""
    attribute = _FACADE.get(name, name.lower())
    return attribute if name.isupper() and (attribute in KEYS or attribute in DERIVED) else None


class _Live(type):
    """Reads attributes of Conf from ``conf``, and sets them there."""

    def __getattr__(cls, name: str) -> Any:
        if name in _MADE:
            return _MADE[name]()
        attribute = _attribute(name)
        if attribute is None:
            raise AttributeError(f"Conf has no {name!r}")
        return getattr(conf, attribute)

    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if attribute := _attribute(name):
            override(attribute, value)

    def __delattr__(cls, name: str) -> None:
        super().__delattr__(name)
        if attribute := _attribute(name):
            restore(attribute)


class Conf(metaclass=_Live):
    """Django-Q's names for the configuration: each key in upper case.

    Tests may set values: they also apply to ``conf``, unchecked, until they are deleted.
    """

    STARTING = "Starting"
    WORKING = "Working"
    IDLE = "Idle"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    QSIZE = True
    SIGNAL_NAMES = {member: member.name for member in signal.Signals}


def prepare_logger() -> None:
    """Give the logger ``django-q`` a console and the level of ``log_level``.

    A handler or level from the project's LOGGING is kept. Safe to call twice. Not called at import: Django's
    settings may not be available yet.
    """
    if logger.level == logging.NOTSET:
        logger.setLevel(conf.log_level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [Q] %(levelname)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
