"""Installing: ``import uwsgi`` and ``import uwsgidecorators`` outside uWSGI.

Comes from:  ``uwsgi_api``, before the application is imported.
Goes to:     ``sys.modules``, and a finder for the decorators, which are only loaded when they are asked for:
             to import them makes them the function that runs jobs.
Thread:      that which imports the application.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

logger = logging.getLogger(__name__)

DECORATORS = "uwsgidecorators"
_OURS = "qworker.spooler.decorators"


class _Loader:
    """Gives a module that is there already another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # what the import system has just replaced


class _Finder:
    """Finds the decorators before the file of the same name that comes with uWSGI."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader(_OURS)) if name == DECORATORS else None  # type: ignore[arg-type]


def install_as_uwsgi(api: ModuleType) -> bool:
    """Make *api* the module ``uwsgi`` of this process, and our decorators ``uwsgidecorators``. May be called
    again. False when there is another one, inside uWSGI; nothing is replaced then."""
    there = sys.modules.get("uwsgi")
    if there is not None and there is not api:
        if not hasattr(there, "masterpid"):
            logger.warning("a module named uwsgi, %r, hides the interface of uWSGI: rename it", there)
        return False
    sys.modules["uwsgi"] = api
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    return True


def uwsgi_of_process(api: ModuleType) -> ModuleType:
    """The uWSGI that this process runs in, and *api* outside one."""
    there = sys.modules.get("uwsgi")
    return there if there is not None and hasattr(there, "masterpid") else api
