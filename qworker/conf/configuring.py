"""Configuring: the app's methods for its settings.

Comes from:  the user's module, as methods of the app.
Goes to:     ``app.conf``, which reads the sources when a setting is first used.
Thread:      the configuring one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from qworker.conf.compat import understand
from qworker.conf.sources import unknown_setting
from qworker.errors import ConfigurationError

if TYPE_CHECKING:
    from qworker.app import QWorker


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise ConfigurationError for the first of *names* that is not a setting, of qworker or Celery."""
    for name in names:
        if understand(name) is None:
            raise ConfigurationError(f"QWorker(…): {unknown_setting(name)}", name, "QWorker(…)")


def config_from_object(
    app: QWorker, obj: Any, silent: bool = False, force: bool = False, namespace: str | None = None
) -> None:
    """Take settings from a module, an object, a mapping, or the dotted name of one. They override earlier
    ones.

    - silent (bool): ignore a missing module.
    - force (bool): read it now, not on first use.
    - namespace (text): "CELERY" reads ``CELERY_TASK_ROUTES`` as ``task_routes`` and ignores other names.
    """
    app.conf.load(obj, namespace, silent)
    if force:
        app.conf.resolve()


def config_from_envvar(app: QWorker, variable_name: str, silent: bool = False, force: bool = False) -> bool:
    """Take settings from the module named in an environment variable; return whether it is set.

    - variable_name (text): its name.
    - silent (bool): return False when it is unset, instead of raising ConfigurationError.
    - force (bool): read the module now, not on first use.
    """
    module = os.environ.get(variable_name)
    if not module:
        if silent:
            return False
        raise ConfigurationError(
            f"the environment variable {variable_name} is not set: it should name a module"
        )
    config_from_object(app, module, silent, force)
    return True


def add_defaults(app: QWorker, values: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
    """Add custom defaults. Every other source overrides them. A function is called when they are needed."""
    app.conf.add_defaults(values)
