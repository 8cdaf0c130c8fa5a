"""Jobs: how spool files are claimed and run, in the process that runs tasks.

Comes from:  messages of ``job_messages``, which name files.
Goes to:     the function that the application has set (``uwsgi_api.spooler``), or the rule of a bridge; the
             file is removed, given back or set aside.
Thread:      the one that runs the task.

The lock of a file is held from before it is read until after it is removed. An attempt is counted before the
function is called, so that deaths count: if a file was begun more often than it was returned, its process has
died, and it waits as if it had been returned.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from qworker.errors import (
    Ignore,
    NoSpoolFunction,
    Reject,
    SoftTimeLimitExceeded,
    SpoolError,
    TaskDirective,
    Terminated,
    UnrunnableJob,
)
from qworker.message.context import current_context
from qworker.naming import import_object
from qworker.process.forked import forgetful
from qworker.spooler import uwsgi_api
from qworker.spooler.files.claiming import GRACE_SECONDS, ClaimedFile, ClaimedPlace, Reason, Refusal, Stamp
from qworker.spooler.files.locks import FileLock, best_lock
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.running.dispatch import SHORT_SECONDS
from qworker.spooler.running.job_messages import RUN, SIGNAL, job_id
from qworker.spooler.uwsgi import job_context
from qworker.tasks.definition import make_task
from qworker.tasks.task import Task

if TYPE_CHECKING:
    from qworker.app import QWorker

logger = logging.getLogger(__name__)
_runners = forgetful()

OK = uwsgi_api.SPOOL_OK
RETRY = uwsgi_api.SPOOL_RETRY
IGNORE = uwsgi_api.SPOOL_IGNORE
NOT_RUN = object()
"""The result of a job that was not run."""

Env = dict[Any, Any]
"""The argument of the function: pairs, by bytes; and by text spooler_task_name, and body when there is
one."""


class SpoolTask(Task[..., Any]):
    """The task of jobs. Its messages may be delivered any number of times: the files decide what is run."""

    acks_late = True
    acks_on_failure_or_timeout = False
    keep_failed = False
    reject_on_worker_lost = True
    again_after_time_limit = True
    max_retries = None
    max_deliveries = 2**31 - 1


def add_spool_tasks(app: QWorker, options: SpoolerOptions, *, results: bool) -> None:
    """Add the tasks that run jobs and signals to the registry of *app*. Safe to call twice; the later options
    apply."""
    runner = JobRunner(app, options, results=results)
    for name, function in ((RUN, runner.run), (SIGNAL, run_signal)):
        app.tasks.pop(name, None)
        app.tasks.register(make_task(app, function, name=name, base=SpoolTask))


def run_signal(number: int) -> None:
    """Call the handlers of signal *number*."""
    uwsgi_api.run_signal(number)


def _end_copy(error: BaseException | None) -> None:
    """End this process, which was forked by the job and has returned from the function: the job belongs to
    its parent. error: what the function raised."""
    code: object = 0
    if isinstance(error, SystemExit):
        code = error.code or 0
    elif error is not None:
        logger.error("a process that the job had forked has raised", exc_info=error)
        code = 1
    os._exit(code & 0xFF if isinstance(code, int) else 1)


class _SpoolDirectory:
    """A spool directory, in the process that runs its jobs. declined: files that are not for this process."""

    def __init__(self, app: QWorker, path: str, lock: FileLock) -> None:
        self.path = path
        self.declined: dict[str, Stamp] = {}
        self.claims = ClaimedPlace(
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
            lock=lock,
            owners={os.getuid(), 0},
            grace=GRACE_SECONDS,
            clock=app.clock,
            ended=lambda path, refusal: None,
        )
        self._status = os.fstat(self.claims.directory)

    def is_at_its_path(self) -> bool:
        """Return whether the path still leads to this directory. OSError when it does not exist."""
        return os.path.samestat(os.stat(self.path), self._status)

    def close(self) -> None:
        os.close(self.claims.directory)


class JobRunner:
    """Runs jobs according to *options*.

    - results: whether the return value of a job is the result of its message, which then has only one job.
    - seconds: once the jobs of a message have taken longer, the next one is not begun.
    """

    def __init__(
        self, app: QWorker, options: SpoolerOptions, *, results: bool, seconds: float = SHORT_SECONDS
    ) -> None:
        self._app = app
        self._options = options
        self._results = results
        self._seconds = seconds
        self._policy = JobRetries(options.max_attempts, options.backoff, options.backoff_max)
        self._places: dict[tuple[int, str], _SpoolDirectory] = {}  # by process
        self._bridge: Callable[[Env], Any] | None = None
        self._logged: set[str] = set()
        self._running: set[ClaimedFile] = set()
        _runners.add(self)
        self._stuck: list[ClaimedFile] = []
        """Finished jobs that cannot be removed: they stay locked as long as this process lives."""

    def _after_fork(self) -> None:
        """In a process forked by a job: leave the claims to the parent, with which the locks must end."""
        for claim in self._running:
            claim.leave_to_parent()
        self._running.clear()

    def run(self, directory: str, paths: Sequence[str]) -> Any:
        """Run the available jobs in the files *paths* of *directory* one after another, for a limited time;
        return the result of a single job, if there are results.

        Raises Reject when one of the files may still exist: then ``dispatch`` checks each of them, which is
        expensive.
        """
        try:
            place = self._place(directory)
        except OSError as error:
            logger.warning("the spool directory %s cannot be opened: %s", directory, error.strerror)
            raise Reject("its directory cannot be opened", requeue=True) from None
        until = time.monotonic() + self._seconds
        value: Any = NOT_RUN
        ended = 0
        with _working_directory() as may_move, _named_by_job(len(paths) > 1) as begin:
            for number, path in enumerate(paths):
                if number and time.monotonic() > until:
                    break
                found = place.claims.claim(path)
                if isinstance(found, Refusal):
                    ended += found.reason is Reason.GONE
                    continue
                self._running.add(found)
                begin(found.name)
                try:
                    value = self._run(place, found, may_move)
                finally:
                    self._running.discard(found)
                    if found.held and found not in self._stuck:
                        found.let_go()
                ended += found.is_over
        if not self._results:
            if ended < len(paths):
                raise Reject(f"{len(paths) - ended} of {len(paths)} files may still be there", requeue=True)
            return None
        if value is NOT_RUN:
            raise Ignore("the job was not run here, or not yet")  # so no result is stored
        return value

    def _run(self, place: _SpoolDirectory, claim: ClaimedFile, may_move: bool) -> Any:
        """Run a job, and end its claim. Return its return value, or NOT_RUN. may_move: whether the working
        directory may be changed."""
        if place.declined and place.declined.get(claim.path) == claim.stamp():
            return NOT_RUN
        env: Env = {**claim.pairs, "spooler_task_name": claim.name}
        if body := claim.body:
            env["body"] = body
        before, number = 0, 1
        if not claim.begin_first():
            before = claim.attempts
            if before and self._is_not_to_run(claim, before):
                return NOT_RUN
            number = claim.begin()
        began = time.perf_counter()
        try:
            with job_context.RunningJob(place.path, claim.path, env):
                if may_move:
                    self._move(place, claim.path)
                value = self._call(env, claim.name)
        except Terminated:
            claim.set_aside("its run was ended by a revocation")
            raise
        except SoftTimeLimitExceeded:  # the worker is stopping
            claim.let_go(before)
            raise
        except (UnrunnableJob, TaskDirective) as directive:
            if isinstance(directive, Reject) and directive.requeue:
                return self._again(claim, number, directive)
            claim.set_aside(str(directive) or type(directive).__name__)
            return self._failed(directive)
        except NoSpoolFunction as error:
            return self._keep(claim, before, error)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            logger.exception("job %s raised at attempt %d", claim.name, number)
            return self._again(claim, number, error)
        if type(value) is int and value == OK:
            self._finish(claim)
            if not self._options.quiet:
                logger.info("job %s done in %.6fs", claim.name, time.perf_counter() - began)
            return value
        if type(value) is int and value == IGNORE:
            claim.let_go(before)
            return self._declined(place, claim)
        if value == RETRY and claim.pairs.get(b"ud_spool_ret") == b"-1":  # @spoolforever: not a failure
            claim.give_back(self._policy.delay(1), attempts=before)
            return value
        return self._again(claim, number, SpoolError(f"it returned {value!r:.100}, which is not SPOOL_OK"))

    def _is_not_to_run(self, claim: ClaimedFile, attempts: int) -> bool:
        """End the claim of a job that was begun before if it has no attempt left, or has to wait because its
        process has died. Return whether it did."""
        deaths = attempts - claim.returns
        if deaths <= 0:
            return False
        if self._policy.is_last(attempts):
            reason = f"it was started {attempts} times, and its process died before it ended"
            claim.set_aside(reason)
            self._failed(SpoolError(reason))
            return True
        wait = claim.changed() + self._policy.delay(attempts) - self._app.clock.now()
        if wait <= 0:
            claim.count_return()
            return False
        logger.warning(
            "job %s: its process died at attempt %d, runs again in %.1f s", claim.name, attempts, wait
        )
        claim.give_back(wait, returned=True)
        return True

    def _again(self, claim: ClaimedFile, number: int, error: BaseException) -> Any:
        """Give back a failed job, or set it aside after its last attempt."""
        if self._policy.is_last(number):
            claim.set_aside(f"attempt {number}, the last: {type(error).__name__}: {error}"[:2000])
            return self._failed(error)
        delay = self._policy.delay(number)
        claim.give_back(delay, returned=True)
        logger.info("job %s runs again in %.1f s, after attempt %d", claim.name, delay, number)
        if self._results:
            raise Reject(f"runs again: {error}"[:200], requeue=True)
        return None

    def _keep(self, claim: ClaimedFile, before: int, error: NoSpoolFunction) -> None:
        """Give back a job without counting the attempt, because the deployment is wrong, and not the job: it
        waits without limit, as with uWSGI. Each reason is logged once per process."""
        claim.give_back(self._options.frequency, attempts=before)
        reason = str(error)
        level = logging.DEBUG if reason in self._logged else logging.ERROR
        self._logged.add(reason)
        logger.log(level, "job %s waits: %s", claim.name, reason)
        if self._results:
            raise Reject(f"waits: {error}"[:200], requeue=True)

    def _failed(self, error: BaseException) -> None:
        """Raise *error* as the result, if there are results; the file is set aside already."""
        if self._results:
            raise error

    def _finish(self, claim: ClaimedFile) -> None:
        try:
            claim.finish()
        except OSError as error:
            self._stuck.append(claim)
            logger.error("job %s is done and cannot be removed, so it stays locked: %s", claim.name, error)

    def _declined(self, place: _SpoolDirectory, claim: ClaimedFile) -> None:
        """Remember the state of the file: it is not run here until it changes."""
        try:
            status = os.stat(claim.path, dir_fd=place.claims.directory, follow_symlinks=False)
        except OSError:
            return
        place.declined[claim.path] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        logger.warning("job %s is not for this spooler, and is kept (SPOOL_IGNORE)", claim.name)

    def _call(self, env: Env, name: str) -> Any:
        if self._options.bridge:
            if self._bridge is None:
                self._bridge = import_object(self._options.bridge)
            call = self._bridge(env)
            if call is not None:
                # A death between the two steps may send it twice: both have the job's name as id.
                call.apply_async(task_id=job_id(name))
                return OK
        function = uwsgi_api.spooler
        if function is None:
            raise NoSpoolFunction(uwsgi_api.no_function())
        process = os.getpid()
        try:
            value = function(env)
        except BaseException as error:
            if os.getpid() != process:
                _end_copy(error)
            raise
        if os.getpid() != process:
            _end_copy(None)
        return value

    def _place(self, directory: str) -> _SpoolDirectory:
        key = os.getpid(), directory
        place = self._places.get(key)
        if place is None or not place.is_at_its_path():
            if place is not None and not self._running:  # otherwise jobs of other threads still use it
                place.close()
            place = self._places[key] = _SpoolDirectory(self._app, directory, best_lock(directory))
        return place

    def _move(self, place: _SpoolDirectory, path: str) -> None:
        """Change to the directory of spooler-chdir, or that of the job's file. The previous job may have
        changed it."""
        if self._options.chdir:
            os.chdir(self._options.chdir)
        elif "/" in path:
            os.chdir(os.path.dirname(f"{place.path}/{path}"))
        else:
            os.fchdir(place.claims.directory)


@contextmanager
def _named_by_job(several: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each job: log lines and calls made by the job then have its
    id, and not that of the message's first job. several: whether the message has more than one."""
    context = current_context()
    if context is None or not several:
        yield lambda name: None
        return
    before = context.id, context.root_id

    def begin(name: str) -> None:
        context.id = context.root_id = job_id(name)

    try:
        yield begin
    finally:
        context.id, context.root_id = before


@contextmanager
def _working_directory() -> Iterator[bool]:
    """Yield whether the working directory may be changed, and restore it afterwards. It belongs to the
    process, so jobs in other threads do not change it."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield True
    finally:
        os.fchdir(before)
        os.close(before)


# -- JobRetries: when a job that did not succeed is tried again --


class JobRetries(NamedTuple):
    """A job is set aside when it was begun *max_attempts* times (None: never). It waits *backoff* seconds
    before the second attempt, and twice as long before each further one, up to *most*."""

    max_attempts: int | None
    backoff: float
    most: float

    def delay(self, attempts: int) -> float:
        """Return the seconds to wait after this number of *attempts*."""
        return min(self.backoff * 2.0 ** min(max(0, attempts - 1), 60), self.most)

    def is_last(self, attempts: int) -> bool:
        """Return whether the attempt number *attempts* is the last."""
        return self.max_attempts is not None and attempts >= self.max_attempts
