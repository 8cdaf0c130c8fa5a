"""The spooler: jobs as files in a directory, which uWSGI's spooler and ours write and work off together.

Comes from:  ``Writer``, uWSGI, or anybody who writes the same files.
Goes to:     ``SpoolDirectory``, which claims one job after the other.
Thread:      see each module.

Modules, in reading order. A file: ``packet`` (its bytes), ``names``. Writing: ``place`` (the directory),
``disk`` (what has reached it), ``writing``. Claiming: ``locks``, ``attempts``, ``aside`` (what nobody can
run), ``claiming``. Waking: ``scanning``, ``inotify`` with ``watching``, ``candidates`` (what to try next),
and ``directory``, which has all of them. People: ``listing``, ``examining``, ``copying`` and
``administration``, which sees, removes, retries and moves. Packages: ``network``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qworker.spooler.packet import Packet, decode, encode
from qworker.spooler.writing import NewJob, Sync, Writer, sweep

if TYPE_CHECKING:
    from qworker.spooler.administration import SpoolAdmin
    from qworker.spooler.claiming import Claim
    from qworker.spooler.directory import SpoolDirectory

_MODULE_OF = {"Claim": "claiming", "SpoolAdmin": "administration", "SpoolDirectory": "directory"}
"""Who only writes does without what claiming and waking need."""
__all__ = [
    "Claim",
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
