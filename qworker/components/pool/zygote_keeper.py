"""The zygote's keeper: forks the zygote, and replaces it when it dies.

Comes from:  Worker, which forks it right after importing the app, before opening threads, sockets or
             databases.
Goes to:     the zygote, which forks the pool's children.
Thread:      single-threaded; it only waits.

The worker itself cannot fork a new zygote, because it has threads by then. So the first forked process, the
keeper, only waits for the zygote. If that dies, the keeper forks another one and notifies the worker.
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
"""A zygote that lived no longer than this died early."""
CRASH_LOOP_DEATHS = 5
"""After this many early deaths in a row the zygote is not replaced."""
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
    """Keep a zygote running until the worker, *parent*, has ended.

    - control: receives ``("gone", generation, wait status)`` for each zygote that died.
    - serve: the zygote's code, called with its generation and this process's id; returns when the worker has
      ended.
    """
    os.setpgid(0, 0)  # only the worker handles signals to its process group
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
        os.setpgid(0, 0)  # so that killing the zygote's group does not kill the keeper
        serve(generation, keeper)
        code = 0
    except ConnectionError:
        code = 0  # the worker has ended without waiting for its children
    except BaseException:  # log it, because children will be missing
        logger.critical("the process that forks the pool's children has failed", exc_info=True)
    finally:
        os._exit(code)


def _wait(pid: int) -> int:
    return os.waitpid(pid, 0)[1]


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even by kill -9."""
    if sys.platform == "linux":
        import ctypes  # here, because the worker does not use it

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
