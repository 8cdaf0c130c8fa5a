"""The context of a job: what it can query about its process, and its own time limit.

Comes from:  the runner of spool jobs in this process, with RunningJob().
Goes to:     ``uwsgi_api``: whether this is a spooler, its directory, and the job's own content.
Thread:      the one that runs the job.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import threading
from collections.abc import Mapping
from typing import Any

from qworker.safe_repr import safe_repr

logger = logging.getLogger(__name__)

_STANDARD_ERROR = 2


class RunningJob:
    """A context manager: within it, this thread runs the job. A time limit set by the job ends with it. A
    class, because it takes a third of the time of a generator, for each job.

    directory: absolute. path: of the file, within it; '' for a signal. env: the function's argument.
    """

    __slots__ = ("_before", "directory", "env", "path")

    def __init__(self, directory: str, path: str = "", env: Mapping[Any, Any] | None = None) -> None:
        self.directory = directory
        self.path = path
        self.env: Mapping[Any, Any] = {} if env is None else env

    def __enter__(self) -> None:
        self._before, _thread.job = _thread.job, self

    def __exit__(self, *_: object) -> None:
        before = _thread.job = self._before
        if before is None and _process.has_limit and threading.current_thread() is threading.main_thread():
            _process.has_limit = False
            faulthandler.cancel_dump_traceback_later()


class _Thread(threading.local):
    """The state of a thread: in a pool of threads, each runs its own job."""

    job: RunningJob | None = None


class _Process:
    """The state of this process; a forked child starts with its parent's."""

    is_spooler = False
    has_limit = False
    """Whether a job may have set a time limit that must end with it."""


_thread = _Thread()
_process = _Process()


def become_spooler() -> None:
    """Mark this process as one that only runs spool jobs; it then counts as a spooler even between jobs."""
    _process.is_spooler = True


def is_spooler() -> bool:
    return _process.is_spooler or _thread.job is not None


def current_job() -> RunningJob | None:
    return _thread.job


def own_task(path: str) -> Mapping[Any, Any] | None:
    """Return the content of the job with the absolute *path*, if this process runs it. None otherwise. Its
    file must not be opened for that: its lock, if a record lock, would be lost, and the job run twice."""
    job = _thread.job
    if job is None or not job.path or os.path.realpath(path) != f"{job.directory}/{job.path}":
        return None
    return job.env


def limit_time(seconds: float) -> None:
    """End this process if the job has not ended in *seconds*, and write its stack to standard error. 0:
    cancel that. This works while the job holds the interpreter, and leaves SIGALRM to the job. Only logs a
    warning outside a spooler, where no master would start another process, and in threads other than the main
    one, whose process may run other jobs."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        raise TypeError(f"a harakiri must be a number of seconds, not {safe_repr(seconds)}")
    if not is_spooler() or threading.current_thread() is not threading.main_thread():
        logger.warning(
            "no harakiri after %s seconds: this is not the main thread of a spooler's own process", seconds
        )
    elif seconds > 0:
        _process.has_limit = True
        faulthandler.dump_traceback_later(min(seconds, 1e9), exit=True, file=_STANDARD_ERROR)
    else:
        faulthandler.cancel_dump_traceback_later()
