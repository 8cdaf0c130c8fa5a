"""SpoolerOptions: all options of a spooler, from any source.

Comes from:  the command line, settings, and uWSGI's ini files.
Goes to:     the runner, its jobs, and the ``uwsgi`` API.
Thread:      any; immutable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

FREQUENCY_SECONDS = 30.0
"""Seconds between two scans: uWSGI's spooler-frequency."""


@dataclass(frozen=True)
class SpoolerOptions:
    """uWSGI's option comes first, if there is one. Paths are absolute and without links.

    - directories: ``spooler``; their jobs are run. In the order in which they were named.
    - external: ``spooler-external``; only written to.
    - default: for jobs that name no directory: the first one named, of either kind.
    - ordered: ``spooler-ordered``; natural order, with priorities.
    - chdir: ``spooler-chdir``; where a job runs. None: in the directory of its file.
    - processes: ``spooler-processes``. None: the worker's concurrency; never None with ``ordered``.
    - quiet: ``spooler-quiet``; no line for each job.
    - max_tasks: ``spooler-max-tasks``; number of jobs after which a process is replaced. None: never.
    - signal_as_task: ``spooler-signal-as-task``; signals count for max_tasks.
    - harakiri: ``spooler-harakiri``; seconds after which a job's process is killed. None: never.
    - frequency: ``spooler-frequency``; seconds between two scans.
    - imports: ``spooler-python-import``; modules or files.
    - sockets: ``spooler-socket``; addresses to receive uwsgi packets on: host:port, or a path.
    - max_attempts: number of failed attempts after which a job is set aside. None: never.
    - backoff, backoff_max: seconds before the second attempt, doubled for each further one, and their
    maximum.
    - allow_pickle: whether jobs with pickled arguments of any kind are run.
    - bridge: ``module:function``, which returns a task signature for a job. None: jobs are run here.
    - results: whether return values are stored, under the names of the files; jobs are then run one by one.
    - socket_key: keys for signing packets from other machines: the first signs, all verify. (): none.
    - socket_allow: addresses and networks of peers that may send, in addition to this machine.
    - socket_timeout: seconds that a peer may take for a packet.
    - buffer_size: maximum bytes of a packet received from a socket.
    - body_max: maximum bytes of a body received from a socket. 0: no bodies.
    """

    directories: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    default: str | None = None
    ordered: bool = False
    chdir: str | None = None
    processes: int | None = None
    quiet: bool = False
    max_tasks: int | None = None
    signal_as_task: bool = False
    harakiri: float | None = None
    frequency: float = FREQUENCY_SECONDS
    imports: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    max_attempts: int | None = 20
    backoff: float = 1.0
    backoff_max: float = 600.0
    allow_pickle: bool = False
    bridge: str | None = None
    results: bool = False
    socket_key: tuple[str, ...] = ()
    socket_allow: tuple[str, ...] = ()
    socket_timeout: float = 4.0
    buffer_size: int = 65_535
    body_max: int = 0


_OTHERWISE = {"directories": "spooler", "imports": "spooler_python_import", "sockets": "spooler_socket"}

SETTING_OF = {
    field.name: _OTHERWISE.get(field.name, f"spooler_{field.name}") for field in fields(SpoolerOptions)
}
"""The setting of each field."""


def is_file(module: str) -> bool:
    """Return whether a module to import is given as the path of a file, not as a name."""
    return "/" in module or module.endswith(".py")


def with_whole_paths(values: Mapping[str, Any], folder: str | None = None) -> dict[str, Any]:
    """Return the same fields of SpoolerOptions with absolute paths without links.

    Spool directories are relative to the current directory, as in uWSGI. folder: the base of all other paths;
    None for the current directory as well.
    """
    base = os.getcwd() if folder is None else folder
    whole = dict(values)
    for name in ("directories", "external"):
        if name in whole:
            whole[name] = tuple(dict.fromkeys(map(os.path.realpath, whole[name])))
    if whole.get("default"):
        whole["default"] = os.path.realpath(whole["default"])
    if whole.get("chdir"):
        whole["chdir"] = os.path.realpath(os.path.join(base, whole["chdir"]))
    if "imports" in whole:
        whole["imports"] = tuple(
            os.path.realpath(os.path.join(base, name)) if is_file(name) else name for name in whole["imports"]
        )
    if "sockets" in whole:
        whole["sockets"] = tuple(
            address
            if address.startswith("@") or ("/" not in address and ":" in address)
            # The file of the socket may be a link that is replaced; its folder is resolved now.
            else os.path.abspath(os.path.join(base, address))
            for address in whole["sockets"]
        )
    return whole
