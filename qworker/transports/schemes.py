"""Which module opens the broker for a URL scheme: one of ours, or one registered by another installed
package.

Comes from:  ``transports/__init__.py``, ``capabilities.py``.
Goes to:     the entry points of installed packages, in the group ``qworker.brokers``.
Thread:      any; pure except for imports.

An entry point is named like its scheme, and names the function that opens the broker::

    [project.entry-points."qworker.brokers"]
    nats = "qworker.transports.nats.broker:open_broker"

The module may have ``CAPABILITIES``, its row in the table of transports.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from qworker.conf import Settings

GROUP = "qworker.brokers"
OLDER = "lacks features that this version of qworker requires of a broker"
OTHER_ARGUMENTS = ("abstract", "required keyword-only", "unexpected keyword argument")
NEWER = "Install a compatible version of it. Its authors find details in docs/how-to/write-a-broker.md"
OURS: dict[str, str] = {}
"""Our brokers' modules by scheme, and PLAIN; filled in by ``transports/__init__.py``."""
PLAIN = "*"
"""Stands for every scheme that kombu has a transport for."""


def own(scheme: str) -> str | None:
    """Return our module for *scheme*; None if there is none."""
    return OURS.get(scheme) or OURS.get(scheme.partition("+")[0])


def module_of(scheme: str) -> str | None:
    """Return the module for *scheme*, ours or another package's, which can be imported; None if there is
    none."""
    if (module := own(scheme)) is not None:
        return module
    point = registered(scheme)
    if point is None:
        return None
    load(point)
    return point.module


def _points() -> tuple[EntryPoint, ...]:
    return _points_on(tuple(sys.path))


@lru_cache(maxsize=1)  # it reads a file of each installed package
def _points_on(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    # It loads about twenty modules, which our own brokers do not need.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def registered(scheme: str) -> EntryPoint | None:
    """Return the entry point for *scheme*; None when there is none. ConfigurationError when there are two."""
    found = {point.value: point for point in _points() if point.name == scheme}
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
        if _is_of_another_version(error):
            raise _failed(point, f"{OLDER}: {error}. {NEWER}") from error
        raise _failed(point, f"cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise _failed(point, "is not a function open_broker(url, conf)")
    return function


def names() -> list[str]:
    """Return all registered schemes."""
    return sorted({point.name for point in _points()})


def rows() -> list[Any]:
    """Return ``CAPABILITIES`` of every module, ours first, each once."""
    modules = dict.fromkeys([*OURS.values(), *(module_of(name) for name in names())])
    found = [getattr(import_module(module), "CAPABILITIES", None) for module in modules if module is not None]
    return [one for one in found if one is not None]


def opened(point: EntryPoint, kind: type, url: str | None, conf: Settings) -> Any:
    """Return the broker that the function named by *point* opens. ConfigurationError unless it is of *kind*,
    with an attribute for each argument of ``kind.__init__``."""
    function = load(point)
    try:
        store = function(url, conf)
    except (TypeError, ImportError) as error:
        if _is_of_another_version(error):
            raise _failed(point, f"{OLDER}: {error}. {NEWER}") from error
        raise
    if not isinstance(store, kind):
        raise _failed(point, f"returned {type(store).__name__}, which is not a {kind.__name__}")
    fields = [name for name in kind.__init__.__annotations__ if name != "return"]  # type: ignore[misc]
    if missing := [name for name in fields if not hasattr(store, name)]:
        raise _failed(point, f"{OLDER}: its broker has no {', '.join(missing)}. {NEWER}")
    return store


def _is_of_another_version(error: Exception) -> bool:
    """Whether a package that was written for another version of qworker may raise *error*."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] == "qworker"
    return isinstance(error, TypeError) and any(words in str(error) for words in OTHER_ARGUMENTS)


def _failed(point: EntryPoint, what: str) -> ConfigurationError:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return ConfigurationError(
        f"broker_url: {point.value}, which{package} has registered for {point.name}://, {what}",
        setting="broker_url",
    )
