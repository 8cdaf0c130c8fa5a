"""The zygote's keeper: forks the zygote, and forks it anew when it dies.

Comes from:  Worker, which forks it right after the app is imported, before any thread, socket or database.
Goes to:     the zygote, which forks the pool's children.
Thread:      single-threaded; it does nothing but wait.

The worker itself can make no new zygote: by the time one dies, the worker has threads. So the process that
was forked first is kept as it was. A task that takes its parent with it takes the zygote, and the keeper
tells the worker.
"""

from __future__ import annotations

import itertools
import logging
import marshal
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
CRASH_LOOP_SECONDS = 1.0
"""A zygote that lives no longer has died early."""
CRASH_LOOP_DEATHS = 5
"""After so many early deaths in a row no other zygote is forked."""
IGNORED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def keep(control: socket.socket, parent: int, serve: Callable[[int, int], None]) -> None:
    """Have a zygote at all times until the worker, *parent*, is gone.

    serve: what a zygote does, given the number of its generation and the id of this process; it returns when
    the worker is gone. control: through it the worker hears ``("gone", generation, wait status)`` of each one
    that died.
    """
    os.setpgid(0, 0)  # a signal to the worker's group is the worker's business
    die_with(parent)
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    early_deaths = 0
    for generation in itertools.count():
        born = time.monotonic()
        status = _wait(_fork(generation, serve))
        if status == 0:
            return
        control.send(marshal.dumps(("gone", generation, status)))
        early_deaths = early_deaths + 1 if time.monotonic() - born < CRASH_LOOP_SECONDS else 0
        if early_deaths == CRASH_LOOP_DEATHS:
            return
        time.sleep(0.1 * 2**early_deaths if early_deaths > 1 else 0.0)


def _fork(generation: int, serve: Callable[[int, int], None]) -> int:
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setpgid(0, 0)  # who kills the zygote's group leaves the keeper
        serve(generation, keeper)
        code = 0
    except ConnectionError:
        code = 0  # the worker is gone, and has not waited for the last word of its children
    except BaseException:  # else nobody would ever hear why no children can be had
        logger.critical("the process that forks the pool's children has failed", exc_info=True)
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, also by kill -9."""
    if sys.platform == "linux":
        import ctypes  # here, after the fork: the worker has no use for it

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
