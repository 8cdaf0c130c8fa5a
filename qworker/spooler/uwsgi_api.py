"""The ``uwsgi`` API, outside uWSGI: for applications, in the web process and in the spooler.

Comes from:  application code, as ``uwsgi`` after install().
Goes to:     ``enqueueing``, ``introspection``, ``runtime`` and ``signal_table``; and the code that runs jobs,
             which reads ``spooler``.
Thread:      any.

The directories are set by configure() or the settings of the app. Without them ``spool`` and everything else
that needs a spooler does not exist, as in a uWSGI without a spooler: ``hasattr(uwsgi, "spool")`` is false,
and using it raises NoSpooler, an AttributeError that names the setting. Differences from uWSGI 2.0:

- ``spool`` accepts text, bytes and whole numbers as keys and values, and ``at`` as a number or datetime, too.
  It never changes its arguments, and refuses values that uWSGI truncates or misunderstands.
- ``spooler_jobs`` and ``spooler_get_task`` read all directories and priorities, and no others.
- ``spooler_pids`` has one process for each spooler of a directory on this machine: the parent of the others.
- The target of a signal may be the directory of a spooler. Handlers for workers and mules are kept but never
  run, which is logged.
- ``lock`` waits without limit, like uWSGI's, for processes of this machine with the same first directory.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

from qworker.context import get_current_app
from qworker.errors import ConfigurationError, NoSpooler, NotSpooled, SpoolError, UnrunnableJob
from qworker.safe_repr import safe_repr
from qworker.spooler.files.place import prepared
from qworker.spooler.options import SpoolerOptions
from qworker.spooler.settings import options_of
from qworker.spooler.uwsgi import introspection, job_context, runtime, signal_socket
from qworker.spooler.uwsgi.enqueueing import Enqueuer
from qworker.spooler.uwsgi.signal_table import SPOOLER, CronFields, SignalTable, checked

logger = logging.getLogger(__name__)

SPOOL_OK = -2
SPOOL_RETRY = -1
SPOOL_IGNORE = 0
SetAside = UnrunnableJob
"""A job that raises this is not run again: its file is set aside at once, with the text as the reason."""
version = b"2.0.31"
"""The version of uWSGI whose API this is."""
version_info = (2, 0, 31, 0, b"")

spooler: Callable[[dict[Any, Any]], object] | None = None
"""The function that runs jobs; set by the application, and read for each job."""
post_fork_hook: Callable[[], object] | None = None
"""Called in each process of the spooler after it has started; set by the application."""
not_imported: list[str] = []
"""The modules of the application that could not be imported: an unknown function may be in one of them."""
signal_table = SignalTable()
"""The application's registrations."""

Provider: TypeAlias = "Callable[[], SpoolerOptions | None]"


class _Configured:
    """The argument of configure(). enqueuer: created when it is first needed, from options with a
    directory."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.options = SpoolerOptions()
        self.enqueuer: Enqueuer | None = None
        self.locks: dict[int, int] = {}

    def ready(self) -> Enqueuer | None:
        """Return the enqueuer; None while no directory is configured."""
        if self.enqueuer is None:
            options = self.provider()
            if options is not None:
                self.options = options
                if options.directories or options.external:
                    self.enqueuer = Enqueuer(options)
        return self.enqueuer


def _settings() -> SpoolerOptions | None:
    """Return the options in the current app's settings; None without an app."""
    try:
        return options_of(get_current_app().conf)
    except ConfigurationError:
        return None


_configured = _Configured(_settings)
_main_process = os.getpid()


def configure(options: SpoolerOptions | Provider) -> None:
    """Set the spool directories of this process, before the application is imported. A function is called
    when they are first needed, and again until it returns a directory."""
    global _configured
    provider = (lambda: options) if isinstance(options, SpoolerOptions) else options
    _configured = _Configured(provider)


def install() -> bool:
    """Make this module ``uwsgi`` in this process, and ``qworker.spooler.decorators`` ``uwsgidecorators``, so
    that code written for uWSGI runs. May be called again. Returns False inside uWSGI, where nothing is
    replaced."""
    return install_as_uwsgi(sys.modules[__name__])


def no_function() -> str:
    """Return why there is no function that runs jobs, and what to do."""
    if not_imported:
        return (
            f"no function runs jobs, because {', '.join(not_imported)} could not be imported: correct that "
            "and restart the spooler; until then jobs wait"
        )
    return (
        "no function runs jobs: name the module that sets uwsgi.spooler with --spooler-python-import, or "
        "import it in the app; until then jobs wait"
    )


def options() -> SpoolerOptions:
    """Return the configured options, or the defaults."""
    _configured.ready()
    return _configured.options


# -- available when a directory is configured --


def _spool(*arguments: Any, **keywords: Any) -> bytes:
    """Enqueue a job: ``spool({b"to": b"you"})`` or ``spool(to="you")``; return the path of its file. With a
    dictionary, keywords are ignored, as with uWSGI. NotSpooled, a ValueError, when nothing was enqueued."""
    message = arguments[0] if arguments else keywords
    if len(arguments) > 1 or not isinstance(message, Mapping) or not (arguments or keywords):
        raise NotSpooled(f"a job must be one dictionary, or keywords, not {safe_repr(arguments, 200)}")
    try:
        return os.fsencode(_enqueuer().enqueue(message))
    except (SpoolError, UnicodeError) as error:
        raise NotSpooled(str(error)) from error


def _spooler_jobs() -> list[bytes]:
    """Return the paths of the waiting and running jobs."""
    return introspection.jobs(_enqueuer().directories)


def _spooler_get_task(path: str | bytes) -> dict[Any, Any] | None:
    """Return the content of a waiting job; None if it does not exist, or is running elsewhere."""
    return introspection.task(_enqueuer().directories, path)


def _spooler_pids() -> list[int]:
    """Return the processes on this machine that process the directories."""
    return [pid for directory in _enqueuer().directories for pid in runtime.pids(directory)]


def _spooler_pid() -> int:
    """Return the first of spooler_pids(); 0 if there is none."""
    return next(iter(_spooler_pids()), 0)


def _set_spooler_frequency(seconds: float) -> bool:
    """Make all spoolers of the directories scan them every *seconds*, until all spoolers have ended."""
    try:
        for directory in _enqueuer().directories:
            runtime.set_frequency(prepared(directory), seconds)
    except SpoolError as error:
        raise NotSpooled(str(error)) from error
    return True


_WITH_SPOOLER: dict[str, Callable[..., Any]] = {
    "send_to_spooler": _spool,
    "set_spooler_frequency": _set_spooler_frequency,
    "spool": _spool,
    "spooler_get_task": _spooler_get_task,
    "spooler_jobs": _spooler_jobs,
    "spooler_pid": _spooler_pid,
    "spooler_pids": _spooler_pids,
}


def __getattr__(name: str) -> Any:
    if name in _WITH_SPOOLER:
        _enqueuer(name)
        return _WITH_SPOOLER[name]
    if name == "spoolers":
        return tuple(map(os.fsencode, _enqueuer(name).directories))
    if name == "opt":
        return _opt()
    raise AttributeError(
        f"uwsgi has no attribute {name!r} here: outside uWSGI only the functions of a spooler exist"
    )


def __dir__() -> list[str]:
    there = {*globals(), "opt"}
    return sorted(there | {*_WITH_SPOOLER, "spoolers"} if _configured.ready() else there)


def _enqueuer(name: str = "spool") -> Enqueuer:
    enqueuer = _configured.ready()
    if enqueuer is None:
        raise NoSpooler(
            f"there is no uwsgi.{name}, because no spool directory is configured: set spooler or "
            "spooler_external, or call qworker.spooler.uwsgi_api.configure()"
        )
    return enqueuer


def _opt() -> dict[str, bytes]:
    """Return the spooler's options that are set, with uWSGI's names and types; of a repeated option the last
    value."""
    enqueuer, known = _configured.ready(), _configured.options
    found: dict[str, bytes] = {}
    if enqueuer is not None:
        for name, places in (("spooler", known.directories), ("spooler-external", known.external)):
            if places:
                found[name] = os.fsencode(places[-1])
    if known.processes is not None:
        found["spooler-processes"] = b"%d" % known.processes
    return found


# -- always available --


def spooler_dir() -> bytes | None:
    """Return the directory of the job that this thread runs; None if it runs none."""
    job = job_context.current_job()
    return os.fsencode(job.directory) if job is not None and job.directory else None


def i_am_the_spooler() -> bool | None:
    """True in a process that runs jobs; None elsewhere, as in uWSGI."""
    return True if job_context.is_spooler() else None


def set_user_harakiri(seconds: float) -> None:
    """End this process if its job has not ended in *seconds*; then the job is tried again. 0: no limit."""
    job_context.limit_time(seconds)


def masterpid() -> int:
    """Return the process that first loaded this module: in a spooler the parent of the others."""
    return _main_process


def worker_id() -> int:
    """Return 0: this is not a worker of uWSGI."""
    return 0


def mule_id() -> int:
    """Return 0: this is not a mule."""
    return 0


def lock(number: int = 0) -> None:
    """Acquire a lock shared by processes of this machine, waiting for it. ValueError in a spooler, as with
    uWSGI."""
    place = _lock_place()
    file = os.open(
        f"{place}/lock-{int(number)}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660
    )
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException:
        os.close(file)
        raise
    _configured.locks[int(number)] = file


def unlock(number: int = 0) -> None:
    """Release the lock, if it is held here."""
    _lock_place()
    file = _configured.locks.pop(int(number), -1)
    if file >= 0:
        os.close(file)


def _lock_place() -> str:
    if job_context.is_spooler():
        raise ValueError("The spooler cannot lock/unlock resources")
    return runtime.state_place(prepared(_enqueuer("lock").directories[0]))


# -- signals --


def register_signal(signum: int, target: str, function: Callable[[int], object]) -> None:
    """Register *function* to be called with the signal in *target*: 'spooler', or the path of a spool
    directory."""
    signal_table.register(signum, target, function)


def signal_registered(signum: int) -> bool | None:
    """Return True or None, as uWSGI does."""
    return True if signal_table.is_registered(signum) else None


def add_timer(signum: int, seconds: float) -> None:
    """Raise a signal every *seconds*."""
    signal_table.add_timer(signum, seconds)


def add_ms_timer(signum: int, milliseconds: float) -> None:
    """Raise a signal every *milliseconds*."""
    signal_table.add_timer(signum, milliseconds / 1000)


def add_rb_timer(signum: int, seconds: float, iterations: int = 0) -> None:
    """Raise a signal every *seconds*, *iterations* times; 0: without limit."""
    signal_table.add_timer(signum, seconds, iterations)


def add_cron(signum: int, minute: int, hour: int, day: int, month: int, weekday: int) -> bool:
    """Raise a signal at these times; see ``signal_table`` for negative numbers."""
    signal_table.add_cron(signum, CronFields(minute, hour, day, month, weekday))
    return True


def add_file_monitor(signum: int, path: str | bytes) -> None:
    """Raise a signal when the file or directory has changed, which is checked every second."""
    signal_table.add_monitor(signum, os.fsdecode(path))


def signal(signum: int, *_: Any) -> None:
    """Raise a signal, from any process of the machine. SpoolError if no spooler for it is running."""
    handler = signal_table.handlers.get(checked(signum))
    target = SPOOLER if handler is None else handler.target
    directories = _enqueuer("signal").directories
    if os.path.isabs(target):
        directories = tuple(place for place in directories if place == os.path.realpath(target))
    elif target != SPOOLER:
        raise SpoolError(
            f"signal {signum} is for {target or 'a worker of uWSGI'}, which does not exist here: register "
            "it with the target 'spooler'"
        )
    if not any(signal_socket.send(place, signum) for place in directories):
        raise SpoolError(f"signal {signum} was not sent: no spooler for it runs on this machine")


def run_signal(signum: int) -> bool:
    """Run the handler of a signal in this process, as a spooler would. Return False if there is none.
    Exceptions of the handler propagate."""
    handler = signal_table.handlers.get(signum)
    directory = handler.target if handler is not None and os.path.isabs(handler.target) else ""
    with job_context.RunningJob(directory):
        return signal_table.run(signum)


def run_post_fork() -> None:
    """Call the application's hook; to be called in each new process of the spooler."""
    if post_fork_hook is not None:
        post_fork_hook()


# -- Installing: ``import uwsgi`` and ``import uwsgidecorators`` outside uWSGI --
# Thread: the one that imports the application.

DECORATORS = "uwsgidecorators"
_OURS = "qworker.spooler.decorators"


class _Loader:
    """Loads an existing module under another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just replaced it


class _Finder:
    """Finds the decorators before the file of the same name that comes with uWSGI."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, _Loader(_OURS)) if name == DECORATORS else None  # type: ignore[arg-type]


def install_as_uwsgi(api: ModuleType) -> bool:
    """Make *api* the module ``uwsgi`` of this process, and our decorators ``uwsgidecorators``. May be called
    again. Returns False, with nothing replaced, if there is another one, as inside uWSGI."""
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
    """Return uWSGI's own module inside uWSGI, and *api* elsewhere."""
    there = sys.modules.get("uwsgi")
    return there if there is not None and hasattr(there, "masterpid") else api
