"""Brokers of other packages: installed packages register them, and a URL's scheme finds them.

Comes from:  ``transports/__init__.py``, ``capabilities.py``, with an unknown scheme.
Goes to:     the entry points of installed packages, in the group ``qworker.brokers``.
Thread:      any; pure except for imports.

An entry point is named like its scheme, and names the function that opens the broker::

    [project.entry-points."qworker.brokers"]
    nats = "qworker.transports.nats.broker:open_broker"

The module may have ``CAPABILITIES``, its row in the table of transports.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "qworker.brokers"


def _points(**wanted: Any) -> Iterable[EntryPoint]:
    # It loads about twenty modules, which our own brokers do not need.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP, **wanted)


def registered(scheme: str) -> EntryPoint | None:
    """Return the entry point for *scheme*; None when there is none. ConfigurationError when there are two."""
    found = {point.value: point for point in _points(name=scheme)}
    if len(found) > 1:
        raise ConfigurationError(
            f"broker_url: {scheme}:// is registered as {' and as '.join(sorted(found))}, in the group "
            f"{GROUP} of entry points: uninstall one of the two packages",
            setting="broker_url",
        )
    return next(iter(found.values()), None)


def load(point: EntryPoint) -> Any:
    """Return the function named by *point*. ConfigurationError when it is missing, or its module fails."""
    try:
        function = point.load()
    except ConfigurationError:
        raise  # it names what is missing
    except Exception as error:
        raise _failed(point, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise _failed(point, "is not a function open_broker(url, conf)")
    return function


def row(scheme: str) -> Any:
    """Return ``CAPABILITIES`` of the module registered for *scheme*; None if either is missing."""
    point = registered(scheme)
    if point is None:
        return None
    load(point)
    return getattr(import_module(point.module), "CAPABILITIES", None)


def names() -> list[str]:
    """Return all registered schemes."""
    return sorted({point.name for point in _points()})


def rows() -> list[Any]:
    """Return ``CAPABILITIES`` of every registered module, each once."""
    found = [row(scheme) for scheme in names()]
    return list({one.name: one for one in found if one is not None}.values())


def check(point: EntryPoint, store: Any, kind: type) -> None:
    """ConfigurationError unless the object opened by *point* is of *kind*."""
    if not isinstance(store, kind):
        raise _failed(point, f"returned {type(store).__name__}, which is not a {kind.__name__}")


def _failed(point: EntryPoint, what: str) -> ConfigurationError:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return ConfigurationError(
        f"broker_url: {point.value}, which{package} has registered for {point.name}://, {what}",
        setting="broker_url",
    )
