"""reporters: plugins that report errors of tasks in addition to the log.

Comes from:  the keys ``error_reporter`` and ``rollbar``; the worker, while it handles a task's exception.
Goes to:     plugins, which other packages bring, and Rollbar.
Thread:      a worker process's. The reporters are made once for a configuration, when the first error comes.
"""

import logging
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qworker.django.conf import conf
from qworker.errors import ConfigurationError
from qworker.naming import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger("django-q")

GROUP = "djangoq.errorreporters"
"""The plugins' group of entry points."""
BUILT_IN = "rollbar"


class Reporter(Protocol):
    """A plugin: a class that is made with its options, and reports the exception being handled."""

    def report(self) -> None: ...


class _Made(NamedTuple):
    """Reporters, and their options."""

    options: Mapping[str, Mapping[str, Any]]
    reporters: tuple[Reporter, ...]


_made: _Made | None = None


class Rollbar:
    """Reports to Rollbar, through its own package. Options: access_token, environment, and its other ones."""

    def __init__(self, access_token: str, environment: str = "production", **options: Any) -> None:
        self._rollbar = import_module(BUILT_IN)
        self._rollbar.init(access_token, environment, **options)

    def report(self) -> None:
        self._rollbar.report_exc_info()


def options_of_reporters() -> dict[str, dict[str, Any]]:
    """Return the configured reporters, by name, and the options of each."""
    own = {} if conf.rollbar is None else {BUILT_IN: conf.rollbar}
    return {**own, **conf.error_reporter}


def reporter_class(name: str) -> Any:
    """Return the class of the reporter of this name.

    ConfigurationError when nothing that is installed brings one.
    """
    from importlib.metadata import entry_points  # costs every start, and few projects have a reporter

    plugins: dict[str, EntryPoint] = {point.name: point for point in entry_points(group=GROUP)}
    if name in plugins:
        try:
            return plugins[name].load()
        except ImportError:  # django-q2 names a package for Rollbar that few have
            if name != BUILT_IN:
                raise
    if name != BUILT_IN:
        raise ConfigurationError(
            f"no installed package brings the error reporter {name!r} (an entry point of the group "
            f"{GROUP}){did_you_mean(name, (*plugins, BUILT_IN))}",
            setting="error_reporter",
        )
    if find_spec(BUILT_IN) is None:
        raise ConfigurationError(
            "errors cannot be reported to Rollbar without its package: pip install rollbar", setting=BUILT_IN
        )
    return Rollbar


def make_reporters() -> tuple[Reporter, ...]:
    """Return the configured reporters; () without any. They are the same until the configuration changes.

    One that cannot be made is logged and left out.
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
        except Exception as error:  # noqa: BLE001 - somebody else's class must not fail the task
            logger.error("the error reporter %s cannot be used: %s", name, error)
    return made


def report_error() -> None:
    """Tell every reporter of the exception that is being handled.

    Called inside an ``except``. It never raises: a reporter that fails is logged.
    """
    try:
        reporters = make_reporters()
    except ConfigurationError as error:
        logger.error("errors are not reported: %s", error)
        return
    for reporter in reporters:
        try:
            reporter.report()
        except Exception:
            logger.exception("the error reporter %s failed", type(reporter).__name__)
