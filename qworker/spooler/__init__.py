"""The spooler: jobs as files in a directory, which both uWSGI's spooler and qworker can write and run.

Comes from:  ``Writer``, uWSGI, or any program that writes the same files.
Goes to:     ``SpoolDirectory``, which claims one job after another.
Thread:      see each module.

Packages, in reading order: ``files``, ``watching``, ``administration``, ``uwsgi``, ``running``, ``broker``,
``network``.

Modules, in reading order: ``options`` (all options), ``ini`` (uWSGI's files), ``settings`` (merges these with
the command line); ``uwsgi_api`` (the module ``uwsgi``), ``arguments``, ``spool_functions`` and ``decorators``
(the module ``uwsgidecorators``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.spooler.administration.admin import SpoolAdmin
    from qworker.spooler.files.claiming import ClaimedFile
    from qworker.spooler.files.packet import Packet, decode, encode
    from qworker.spooler.files.writing import NewJob, Sync, Writer, sweep
    from qworker.spooler.watching.directory import SpoolDirectory

_MODULE_OF = {
    "ClaimedFile": "files.claiming",
    "NewJob": "files.writing",
    "Packet": "files.packet",
    "SpoolAdmin": "administration.admin",
    "SpoolDirectory": "watching.directory",
    "Sync": "files.writing",
    "Writer": "files.writing",
    "decode": "files.packet",
    "encode": "files.packet",
    "sweep": "files.writing",
}
"""The module of each public name. Imported on first use, so that writers do not import the code for
claiming."""
__all__ = [
    "ClaimedFile",
    "NewJob",
    "Packet",
    "SpoolAdmin",
    "SpoolDirectory",
    "Sync",
    "Writer",
    "decode",
    "encode",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'qworker.spooler' has no attribute {name!r}")
    value = getattr(import_module(f"qworker.spooler.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
