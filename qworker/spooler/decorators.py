"""uWSGI's ``uwsgidecorators``, with the same names, in uWSGI and outside it.

Comes from:  the application, on import.
Goes to:     ``spool_functions``, and the signals of ``uwsgi``, ours or the real one.
Thread:      the one that imports the application.

Importing this module makes manage_spool_request() the function that runs jobs, as uWSGI's module does. Jobs
can be exchanged with a uWSGI that uses its own module: the pairs are the same. ``spool_functions`` lists the
differences; decorators for mules, RPC and Erlang raise an error that suggests a replacement.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from qworker.errors import ConfigurationError, NotAvailable, SpoolError
from qworker.spooler import uwsgi_api
from qworker.spooler.spool_functions import decorated, manage_spool_request, spooler_functions, uwsgi

__all__ = [
    "cron",
    "erlang",
    "farm",
    "filemon",
    "get_free_signal",
    "harakiri",
    "lock",
    "manage_spool_request",
    "mstimer",
    "mule",
    "mulefunc",
    "muleloop",
    "mulemsg",
    "postfork",
    "rbtimer",
    "rpc",
    "signal",
    "spool",
    "spooler_functions",
    "spoolforever",
    "spoolraw",
    "thread",
    "timer",
]

postfork_chain: list[Callable[[], object]] = []
"""Functions that each process of a spooler calls after it has started."""


def spool(f: Callable[..., Any] | None = None, pass_arguments: bool = False) -> Any:
    """Run the function later, once; its return value is ignored. If it raises, it is run again."""
    return decorated(f, uwsgi_api.SPOOL_OK, pass_arguments)


def spoolforever(f: Callable[..., Any] | None = None, pass_arguments: bool = False) -> Any:
    """Run the function again and again."""
    return decorated(f, uwsgi_api.SPOOL_RETRY, pass_arguments)


def spoolraw(f: Callable[..., Any] | None = None, pass_arguments: bool = False) -> Any:
    """The function's return value, such as uwsgi.SPOOL_OK, decides about the job."""
    return decorated(f, None, pass_arguments)


def get_free_signal() -> int:
    """Return the lowest signal without a handler. SpoolError when all 256 have one."""
    for signum in range(256):
        if not uwsgi.signal_registered(signum):
            return signum
    raise SpoolError("all 256 signals have handlers: no other timer or cron can be added")


def signal(num: int, *, target: str = "") -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Call the function on signal *num*. target: 'spooler', or a spool directory."""
    return _on_signal(num, target, lambda signum: None)


def timer(secs: float, **where: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Call the function every *secs* seconds. signum, target: as for signal(); a free signal by default."""
    return _raised(where, lambda signum: uwsgi.add_timer(signum, secs))


def mstimer(msecs: float, **where: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Call the function every *msecs* milliseconds. Needs uWSGI 2.1."""
    return _raised(where, lambda signum: uwsgi.add_ms_timer(signum, msecs))


def rbtimer(secs: float, **where: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Like timer(), which uWSGI implements with another clock; here both are the same."""
    return _raised(where, lambda signum: uwsgi.add_rb_timer(signum, secs))


def cron(
    minute: int, hour: int, day: int, month: int, dayweek: int, **where: Any
) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Call the function at these times; -1: any, -N: every multiple of N."""
    return _raised(where, lambda signum: uwsgi.add_cron(signum, minute, hour, day, month, dayweek))


def filemon(fsobj: str, **where: Any) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    """Call the function when the file or directory has changed."""
    return _raised(where, lambda signum: uwsgi.add_file_monitor(signum, fsobj))


def _raised(
    where: dict[str, Any], source: Callable[[int], object]
) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    unknown = where.keys() - {"signum", "target"}
    if unknown:
        raise TypeError(f"there is no {min(unknown)}: pass signum or target")
    return _on_signal(where.get("signum"), where.get("target", ""), source)


def _on_signal(
    num: int | None, target: str, source: Callable[[int], object]
) -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
    def decorate(function: Callable[[int], Any]) -> Callable[[int], Any]:
        signum = get_free_signal() if num is None else num
        uwsgi.register_signal(signum, target, function)
        source(signum)
        return function

    return decorate


class postfork:
    """Call the function in each process after it has started. With a number: only in that worker of uWSGI,
    and so never in a spooler."""

    def __init__(self, f: Callable[[], Any] | int) -> None:
        self.f = f if callable(f) else None
        self.wid = 0 if callable(f) else f
        postfork_chain.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.f is None:
            self.f = args[0]
            return self
        return self.f() if self.wid in (0, uwsgi.worker_id()) else None


def postfork_chain_hook() -> None:
    """Call all functions of the chain, in order."""
    for function in postfork_chain:
        function()


def harakiri(seconds: float) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """End the process when a call takes longer; its job is run again."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            uwsgi.set_user_harakiri(seconds)
            try:
                return function(*args, **kwargs)
            finally:
                uwsgi.set_user_harakiri(0)

        return limited

    return decorate


def thread(f: Callable[..., Any]) -> Callable[..., Any]:
    """A call starts the function in a daemon thread, and returns the function."""

    @functools.wraps(f)
    def start(*args: Any) -> Callable[..., Any]:
        threading.Thread(target=f, args=args, daemon=True).start()
        return f

    return start


def lock(f: Callable[..., Any]) -> Callable[..., Any]:
    """Only one process at a time runs the function; a spooler never runs it, as with uWSGI."""

    @functools.wraps(f)
    def locked(*args: Any, **kwargs: Any) -> Any:
        if uwsgi.i_am_the_spooler():
            return None
        uwsgi.lock()
        try:
            return f(*args, **kwargs)
        finally:
            uwsgi.unlock()

    return locked


def _not_here(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotAvailable(f"@{name} belongs to uWSGI itself, and no spooler has it: {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"It belongs to uWSGI itself, and raises NotAvailable here: {instead}."
    return refuse


mulefunc = _not_here("mulefunc", "make the function a job with @spool(pass_arguments=True), or a task")
mulemsg = _not_here("mulemsg", "send a job, and decorate the function that gets it with @spool")
mule = _not_here("mule", "start a process of its own, or make it a job with @spoolforever")
muleloop = _not_here("muleloop", "make the body of the loop a job with @spoolforever")
farm = _not_here("farm", "send a job, and give the spool directory as many processes as the farm has")
rpc = _not_here("rpc", "make it a task, and get its result")
erlang = _not_here("erlang", "run it in a process of its own")

uwsgi.spooler = manage_spool_request
uwsgi.post_fork_hook = postfork_chain_hook
if uwsgi.masterpid() == 0:
    raise ConfigurationError("the decorators need uWSGI's master process: set master = true in its settings")


# fmt: off
# fmt: on
