"""Loading: finds and imports the modules that define an app's tasks.

Comes from:  the settings ``imports`` and ``include``, and ``app.autodiscover_tasks``.
Goes to:     the import machinery, when a worker or a command needs all tasks.
Thread:      the one that loads; the list only grows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from qworker.errors import ConfigurationError
from qworker.naming import import_object

SETTINGS_MODULE = "DJANGO_SETTINGS_MODULE"


def _installed() -> Iterable[str]:
    """Return the packages of Django's INSTALLED_APPS."""
    names: Iterable[str] = import_object("qworker.django.project:package_names")()
    return names


def _is_configured() -> bool:
    """Return whether this process is configured as a Django project."""
    conf = sys.modules.get("django.conf")
    return conf is not None and bool(conf.settings.configured)


class TaskModules:
    """The packages for discovery, which load() examines."""

    def __init__(self) -> None:
        self._packages: list[tuple[Callable[[], Iterable[str]], str | None]] = []

    def discover(
        self, packages: Iterable[str] | Callable[[], Iterable[str]] | None, related_name: str | None
    ) -> None:
        """Add *packages*, whose module *related_name* load() will import (None: the packages themselves).

        *packages* None means Django's INSTALLED_APPS. ConfigurationError without a Django project.
        """
        if packages is None:
            if SETTINGS_MODULE not in os.environ and not _is_configured():
                raise ConfigurationError(
                    'autodiscover_tasks needs the packages to look in, such as ["proj.mail", "proj.shop"]: '
                    f"this is not a Django project, because {SETTINGS_MODULE} is not set"
                )
            packages = _installed
        self._packages.append((packages if callable(packages) else lambda: packages, related_name))

    def load(self, conf: Any) -> None:
        """Import the modules of the settings, then those of the packages."""
        for setting in ("imports", "include"):
            for module in getattr(conf, setting):
                try:
                    import_object(module)
                except ConfigurationError as error:
                    text = f"{setting} names {module!r}: {error}"
                    raise ConfigurationError(text, setting, conf.source(setting)) from error
        self.load_discovered()

    def load_discovered(self) -> None:
        """Import the modules of the packages, where they exist."""
        for find, related in self._packages:
            for package in find():
                name = f"{package}.{related}" if related else package
                if _is_there(name):
                    import_object(name)


def _is_there(name: str) -> bool:
    """Return whether the module *name* exists. Its parent need not be a package, because a Django app may be
    a single module."""
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
