"""The zygote's keeper: forks the zygote, and replaces it when it dies.

Comes from:  Worker, which forks it right after importing the app, before opening threads, sockets or
             databases.
Goes to:     the zygote, which forks the pool's children.
Thread:      single-threaded; it only waits.

The worker itself cannot fork a new zygote, because it has threads by then. So the first forked process is
kept unchanged. If a task kills its parent, the zygote, the keeper replaces it and tells the worker.
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
"""A zygote that lived no longer died early."""
CRASH_LOOP_DEATHS = 5
"""After so many early deaths in a row the zygote is not replaced."""
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
    """Keep a zygote running until the worker, *parent*, is gone.

    serve: the zygote's code, called with its generation and the id of this process; it returns when the
    worker is gone. control: tells the worker ``("gone", generation, wait status)`` for each zygote that died.
    """
    os.setpgid(0, 0)  # signals to the worker's group are handled by the worker
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
        os.setpgid(0, 0)  # killing the zygote's group does not kill the keeper
        serve(generation, keeper)
        code = 0
    except ConnectionError:
        code = 0  # the worker is gone, and has not waited for its children
    except BaseException:  # otherwise the reason for missing children would be lost
        logger.critical("the process that forks the pool's children has failed", exc_info=True)
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even by kill -9."""
    if sys.platform == "linux":
        import ctypes  # here, after the fork: the worker does not use it

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
