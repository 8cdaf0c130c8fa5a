"""Jobs: how one spool file is run, in the process that runs tasks.

Comes from:  a message of ``job_messages``; the file is locked by the worker meanwhile.
Goes to:     the function that the application has set (``uwsgi_api.spooler``), or the rule of a bridge.
Thread:      whichever runs the task.

What the function says is told to the worker by how the task ends: it is done (SPOOL_OK), or the message is
rejected to be put back. A job that was begun is counted, on its file, before the function is called, so that
a crash counts; one that is not for this process (SPOOL_IGNORE) is not counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import (
    InvalidPacket,
    Reject,
    SoftTimeLimitExceeded,
    SpoolError,
    TaskDirective,
    Terminated,
)
from qworker.naming import import_object
from qworker.spooler import uwsgi_api
from qworker.spooler.attempts import Attempts
from qworker.spooler.job_messages import RUN, SIGNAL
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.packet import Packet
from qworker.spooler.reading import read_whole
from qworker.tasks.definition import make_task
from qworker.tasks.task import Task

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)

OK = uwsgi_api.SPOOL_OK
IGNORE = uwsgi_api.SPOOL_IGNORE

Env = dict[Any, Any]
"""What the function is given: pairs, by bytes; and by text spooler_task_name, and body when there is one."""


class SpoolTask(Task[..., Any]):
    """The task of jobs: a death or a time limit is an attempt, not the end."""

    acks_late = True
    acks_on_failure_or_timeout = False
    reject_on_worker_lost = True
    again_after_time_limit = True
    max_retries = None


def add_spool_tasks(app: QWorker, options: SpoolerOptions) -> None:
    """Enter the tasks that run jobs and signals in the registry of *app*. Safe to call twice; the later
    options count."""
    runner = JobRunner(app, options)
    registry = app.tasks
    for name, function in ((RUN, runner.run), (SIGNAL, run_signal)):
        registry.pop(name, None)
        task = make_task(
            app, function, name=name, base=SpoolTask, max_deliveries=options.max_attempts or 2**31 - 1
        )
        registry.register(task)


def run_signal(number: int) -> None:
    """Call the handlers of signal *number*."""
    uwsgi_api.run_signal(number)


class _Begun(NamedTuple):
    """number: of this attempt, 1 for the first."""

    packet: Packet
    number: int
    uncount: Callable[[], None]


class JobRunner:
    """Runs jobs as *options* say. Its files are opened in the process that runs jobs, at the first one."""

    def __init__(self, app: QWorker, options: SpoolerOptions) -> None:
        self._app = app
        self._options = options
        self._places: dict[tuple[int, str], int] = {}  # by process and directory, their descriptors
        self._bridge: Callable[[Env], Any] | None = None

    def run(self, directory: str, path: str, inode: int) -> Any:
        """Run the job in the file *path* of *directory*; return what its function returned.

        inode: of the file that is locked. Another one by its name is left alone.
        """
        begun = self._begin(directory, path, inode)
        if begun is None:
            return None
        name = path.rpartition("/")[2]
        env: Env = {**begun.packet.pairs, "spooler_task_name": name}
        if begun.packet.body:
            env["body"] = begun.packet.body
        try:
            with self._inside(directory, path):
                value = self._call(env, name)
        except uwsgi_api.SetAside as error:
            raise Reject(str(error)) from error
        except (TaskDirective, SoftTimeLimitExceeded, Terminated):
            raise  # what it says to the worker itself, and what the worker says to it
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if self._is_last(begun.number):
                raise
            logger.exception("job %s raised at attempt %d, and will run again", name, begun.number)
            raise Reject(f"{type(error).__name__}: {error}", requeue=True) from None
        if value == OK and value is not True:
            return value
        if type(value) is int and value == IGNORE:
            begun.uncount()
            logger.warning("job %s is not for this spooler (SPOOL_IGNORE), and is kept for others", name)
            raise Reject("SPOOL_IGNORE", requeue=True)
        if self._is_last(begun.number):
            raise SpoolError(f"it was begun {begun.number} times and asked to be run again each time")
        raise Reject(f"returned {value!r:.100}, so it runs again", requeue=True)

    def _begin(self, directory: str, path: str, inode: int) -> _Begun | None:
        """Read the job and count the attempt; None when its file has gone, and another may have its name."""
        place = self._place(directory)
        name = path.rpartition("/")[2]
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=place)
        except FileNotFoundError:
            logger.warning("%s was removed before its job began", path)
            return None
        try:
            if os.fstat(file).st_ino != inode:
                logger.warning("%s was replaced before its job began", path)
                return None
            packet = read_whole(file)
            attempts = Attempts(place)
            number = attempts.count(file, name)
        except InvalidPacket as error:
            raise Reject(f"it was changed while it was claimed: {error}") from None
        finally:
            os.close(file)

        def uncount() -> None:
            with open(path, "rb", opener=lambda _, flags: os.open(path, flags, dir_fd=place)) as again:
                attempts.write(again.fileno(), name, number - 1)

        return _Begun(packet, number, uncount)

    def _place(self, directory: str) -> int:
        key = os.getpid(), directory
        if key not in self._places:
            self._places[key] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._places[key]

    def _call(self, env: Env, name: str) -> Any:
        if self._options.bridge:
            if self._bridge is None:
                self._bridge = import_object(self._options.bridge)
            call = self._bridge(env)
            if call is not None:
                # Its id is the job's name: who dies between the two sends what is known to be a copy.
                call.apply_async(task_id=name)
                return OK
        function = uwsgi_api.spooler
        if function is None:
            logger.warning(
                "job %s is kept: no function runs jobs. Set uwsgi.spooler, or import the module that does",
                name,
            )
            return IGNORE
        return function(env)

    def _is_last(self, number: int) -> bool:
        most = self._options.max_attempts
        return most is not None and number >= most

    @contextmanager
    def _inside(self, directory: str, path: str) -> Iterator[None]:
        """The working directory of a job: that of spooler-chdir, or the one that its file lies in. It belongs
        to the process, so jobs in threads stay where they are."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.chdir(self._options.chdir or os.path.dirname(f"{directory}/{path}"))
            yield
        finally:
            os.fchdir(before)
            os.close(before)
