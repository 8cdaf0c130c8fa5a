"""reporters: plugins that report tasks' errors, in addition to the log.

Comes from:  the keys ``error_reporter`` and ``rollbar``; the worker, while it handles a task's exception.
Goes to:     plugins in other packages, and Rollbar.
Thread:      a worker process's. Reporters are made at the first error, and when the configuration changes.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qworker.django.conf import conf
from qworker.errors import ConfigurationError
from qworker.interrupts import reraise_interrupt
from qworker.naming import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger("django-q")

GROUP = "djangoq.errorreporters"
"""The entry point group of plugins."""
BUILT_IN = "rollbar"


class Reporter(Protocol):
    """A plugin: an object made with its options that reports the exception being handled."""

    def report(self) -> None: ...


class _Made(NamedTuple):
    """Reporters, and their options."""

    options: Mapping[str, Mapping[str, Any]]
    reporters: tuple[Reporter, ...]


_made: _Made | None = None


class Rollbar:
    """Reports to Rollbar. Options: access_token, environment, and others of ``rollbar.init``."""

    def __init__(self, access_token: str, environment: str = "production", **options: Any) -> None:
        self._rollbar = import_module(BUILT_IN)
        self._rollbar.init(access_token, environment, **options)

    def report(self) -> None:
        self._rollbar.report_exc_info()


def options_of_reporters() -> dict[str, dict[str, Any]]:
    """Return the options of the configured reporters, by name."""
    own = {} if conf.rollbar is None else {BUILT_IN: conf.rollbar}
    return {**own, **conf.error_reporter}


def reporter_class(name: str) -> Any:
    """Return the class of the reporter of this name.

    Raises ConfigurationError if no installed package provides it.
    """
    from importlib.metadata import entry_points  # slow to import, and few projects have a reporter

    plugins: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
    if name in plugins:
        try:
            return plugins[name].load()
        except ImportError:  # django-q2's plugin for Rollbar needs a package that few have
            if name != BUILT_IN:
                raise
    if name != BUILT_IN:
        raise ConfigurationError(
            f"no installed package provides the error reporter {name!r} (an entry point of the group "
            f"{GROUP}){did_you_mean(name, (*plugins, BUILT_IN))}",
            setting="error_reporter",
        )
    if find_spec(BUILT_IN) is None:
        raise ConfigurationError(
            "errors cannot be reported to Rollbar without its package: pip install rollbar", setting=BUILT_IN
        )
    return Rollbar


def make_reporters() -> tuple[Reporter, ...]:
    """Return the configured reporters; the same ones until the configuration changes.

    Reporters that cannot be made are logged and left out.
    """
    global _made
    options = options_of_reporters()
    if _made is None or _made.options != options:
        _made = _Made(options, tuple(_make_all(options)))
    return _made.reporters


def _make_all(options: Mapping[str, Mapping[str, Any]]) -> list[Reporter]:
    made = []
    for name, arguments in options.items():
        try:
            made.append(reporter_class(name)(**arguments))
        except Exception as error:  # noqa: BLE001 - a plugin must not fail the task
            reraise_interrupt(error)
            logger.error("the error reporter %s cannot be used: %s", name, error)
    return made


def report_error() -> None:
    """Report the exception being handled to every reporter.

    Call it inside an ``except`` block. Never raises: a reporter's own errors are logged.
    """
    try:
        reporters = make_reporters()
    except ConfigurationError as error:
        logger.error("errors are not reported: %s", error)
        return
    for reporter in reporters:
        try:
            reporter.report()
        except Exception as error:
            reraise_interrupt(error)
            logger.exception("the error reporter %s failed", type(reporter).__name__)
