"""The spooler: jobs as files in a directory, which uWSGI's spooler and ours write and work off together.

Comes from:  ``Writer``, uWSGI, or anybody who writes the same files.
Goes to:     ``SpoolDirectory``, which claims one job after the other.
Thread:      see each module.

Modules, in reading order. A file: ``packet`` (its bytes), ``names``, ``reading``. Writing: ``place`` (the
directory), ``disk`` (what has reached it), ``writing``, ``sweeping``. Claiming: ``locks``, ``attempts``,
``aside`` (what nobody can run), ``claiming``. Waking: ``scanning``, ``inotify`` with ``watching``,
``candidates`` (what to try next), and ``directory``, which has all of them. People: ``listing``, ``census``,
``examining``, ``copying`` and ``administration``, which sees, removes, retries and moves. What is said of it:
``options``, ``ini`` (uWSGI's files) and ``settings``, which has all that is said together. Running:
``uwsgi_api`` (the function that runs jobs), ``policy``, ``jobs`` (in a child); ``job_messages``, ``consumer``
and ``dispatch`` (in a worker), ``depths`` and ``beside`` (with the app's own broker), and ``runner``, which
attaches all to an app. A spool directory as a broker: ``message_files``, ``messages`` and ``broker``. uWSGI's
interface: ``enqueueing``, ``runtime`` (who works off a directory), ``job_context``, ``introspection``;
signals with ``cron_fields``, ``signal_table``, ``clockwork`` (when), ``signal_socket`` and ``signal_source``;
``installing``. Its decorators: ``arguments``, ``spool_functions`` and ``decorators``. Packages: ``network``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qworker.spooler.administration import SpoolAdmin
    from qworker.spooler.claiming import Claim
    from qworker.spooler.directory import SpoolDirectory
    from qworker.spooler.packet import Packet, decode, encode
    from qworker.spooler.writing import NewJob, Sync, Writer, sweep

_MODULE_OF = {
    "Claim": "claiming",
    "NewJob": "writing",
    "Packet": "packet",
    "SpoolAdmin": "administration",
    "SpoolDirectory": "directory",
    "Sync": "writing",
    "Writer": "writing",
    "decode": "packet",
    "encode": "packet",
    "sweep": "writing",
}
"""Who only writes does without what claiming and waking need, and a worker without a spooler without all."""
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
