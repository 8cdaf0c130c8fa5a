"""SpoolerOptions: everything that can be said of a spooler, wherever it was said.

Comes from:  the command line, settings, and uWSGI's ini files.
Goes to:     the runner, its jobs, and the ``uwsgi`` API.
Thread:      any; never changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from qworker.spooler.directory import FREQUENCY_SECONDS


@dataclass(frozen=True)
class SpoolerOptions:
    """uWSGI's option is named first, where there is one. Paths are absolute, and without links.

    - directories: ``spooler``; worked off, in the order in which they were named.
    - external: ``spooler-external``; only written to.
    - default: where jobs go that name none: the first that was named, of either kind.
    - ordered: ``spooler-ordered``; natural order, with priorities.
    - chdir: ``spooler-chdir``; where a job runs. None: in the directory of its file.
    - processes: ``spooler-processes``. None: the worker's own number.
    - quiet: ``spooler-quiet``; no line for each job.
    - max_tasks: ``spooler-max-tasks``; a process is replaced after so many. None: never.
    - signal_as_task: ``spooler-signal-as-task``; signals count for max_tasks.
    - harakiri: ``spooler-harakiri``; seconds after which a job's process is killed. None: never.
    - frequency: ``spooler-frequency``; seconds between two scans.
    - imports: ``spooler-python-import``; modules or files.
    - sockets: ``spooler-socket``; where uwsgi packets are taken: host:port, or a path.
    - max_attempts: a job that was begun so often without success is set aside. None: never.
    - backoff, backoff_max: seconds until the second attempt, which double with each one, up to the latter.
    - allow_pickle: whether arguments that are pickled are run.
    - bridge: ``module:function``, which makes a task signature of a job. None: jobs are run here.
    - socket_key: keys that packets of peers elsewhere are signed with: the first signs, all verify. (): none.
    - socket_allow: addresses and networks of peers that may send, beside this machine's own.
    - socket_timeout: seconds that a peer may take for a packet.
    - buffer_size: the longest packet that is taken from a socket, in bytes.
    - body_max: the longest body that is taken from a socket, in bytes. 0: none.
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
    socket_key: tuple[str, ...] = ()
    socket_allow: tuple[str, ...] = ()
    socket_timeout: float = 4.0
    buffer_size: int = 65_535
    body_max: int = 0
