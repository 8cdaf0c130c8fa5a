"""The zygote, a process that only forks the pool's children, and its keeper, which forks the zygote.

Comes from:  Worker, which forks the keeper right after importing the app, before opening threads, sockets
             or databases.
Goes to:     ``child_main.main`` in the children it forks.
Thread:      single-threaded on both sides of each fork; the parent's side belongs to the pool thread.

Forking while threads run is unsafe, and a pool that replaces children forks at any time. The zygote has no
threads, so its forks are safe, and the children share its memory. Each child has its own session: a task that
kills its process group kills no others. When the zygote dies, all its children die with it. The worker
cannot fork a new zygote, because it has threads by then. So the first forked process, the keeper, only waits
for the zygote; if that dies, it forks another one and notifies the worker.
"""

from __future__ import annotations

import gc
import itertools
import logging
import marshal
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

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


logger = logging.getLogger(__name__)


class Zygote:
    """The parent's handle of the zygote. Call fork() once, in the main thread, and all other methods on the
    pool thread."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._control: socket.socket | None = None
        self._generation = 0
        self.pid = 0
        """The process id of the keeper."""

    def fork(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.settimeout(None)  # the program may have set a default timeout
        sys.stdout.flush()
        sys.stderr.flush()
        # A garbage collection after the fork would write to every object and so copy shared memory. Collect
        # now, and freeze all objects so that later collections skip them.
        gc.collect()
        gc.freeze()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                _load(self._app)
                keep(theirs, parent, partial(_serve, theirs, self._app))
            except ConnectionError:
                pass  # the worker has ended
            except BaseException:
                logger.critical("the keeper of the process that forks children has failed", exc_info=True)
            finally:
                os._exit(0)
        theirs.close()
        self._control = ours

    def fileno(self) -> int:
        return self._control.fileno() if self._control else -1

    def spawn(self, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> None:
        """Request a child; ``("up", index, pid)`` will follow. Raises OSError if zygote and keeper have
        died."""
        assert self._control is not None, "fork first"
        request = marshal.dumps((self._generation, dict(settings)))
        socket.send_fds(self._control, [request], [jobs.fileno(), tokens, orders])

    def receive(self) -> list[tuple[str, int, int]]:
        """Return notices: ``("up", index, pid)``, ``("exit", pid, status)``, and ``("gone", generation,
        status)`` when the zygote has died with all its children and was replaced.

        Raises EOFError if the keeper has died too.
        """
        assert self._control is not None, "fork first"
        messages: list[tuple[str, int, int]] = []
        while True:
            try:
                data = self._control.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            except ConnectionError:
                data = b""
            if not data:
                if messages:
                    return messages
                raise EOFError("the process that forks the pool's children has died")
            message = marshal.loads(data)
            if message[0] == "gone":
                self._generation = message[1] + 1
            messages.append(message)

    def close(self) -> None:
        """End the zygote with all its children. Safe to call twice."""
        if self._control is not None:
            try:
                # close() is not enough: the zygote of another worker in this process may have inherited the
                # socket.
                self._control.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has died
            self._control.close()
            self._control = None
            try:
                os.waitpid(self.pid, 0)
            except ChildProcessError:
                pass


def _load(app: Any) -> None:
    """Load what every child needs, once for all zygotes and their children."""
    with suppress(Exception):  # the worker reports the error
        app.broker, app.backend  # noqa: B018  # loads the stores' modules
    import billiard.popen_fork
    import billiard.util  # noqa: F401

    import qworker.components.pool.child_main  # noqa: F401

    gc.freeze()


def _serve(control: socket.socket, app: Any, generation: int, parent: int) -> None:
    """Fork children on request until the worker has ended."""
    die_with(parent)
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    processes: dict[int, Any] = {}
    ready = select.poll()
    ready.register(control, select.POLLIN)
    ready.register(readable, select.POLLIN)
    while True:
        for file, _ in ready.poll():
            if file == readable:
                os.read(readable, 4096)
                continue
            data, files, _, _ = socket.recv_fds(control, 65536, 3)
            if not data:
                for pid in processes:
                    os.kill(pid, signal.SIGKILL)
                return
            asked, settings = marshal.loads(data)
            if asked == generation:
                _fork_child(control, (readable, writable), app, settings, files, processes)
            for file in files:
                os.close(file)
        _reap(control, processes)


def _fork_child(
    control: socket.socket,
    wakeup: tuple[int, int],
    app: Any,
    settings: dict[str, Any],
    files: list[int],
    processes: dict[int, Any],
) -> None:
    import billiard

    process = billiard.get_context("fork").Process(
        target=_child,
        args=(control, wakeup, app, settings, files, os.getpid()),
        name=f"child-{settings['index']}",
    )
    try:
        process.start()
    except OSError:  # no memory, or too many processes: the pool sees the socket close and retries later
        control.send(marshal.dumps(("exit", -settings["index"] - 1, -1)))
    else:
        processes[process.pid] = process
        control.send(marshal.dumps(("up", settings["index"], process.pid)))


def _child(
    control: socket.socket,
    wakeup: tuple[int, int],
    app: Any,
    settings: dict[str, Any],
    files: list[int],
    parent: int,
) -> None:
    from qworker.components.pool import child_main

    die_with(parent)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in (signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(name, signal.SIG_DFL)
    control.close()
    for file in wakeup:
        os.close(file)
    os._exit(child_main.main(app, socket.socket(fileno=files[0]), files[1], files[2], settings))


def _reap(control: socket.socket, processes: dict[int, Any]) -> None:
    # Through billiard and one by one, because billiard also reaps dead processes when it starts one.
    for pid, process in list(processes.items()):
        code = process.exitcode
        if code is not None:
            del processes[pid]
            process.join()  # makes billiard forget it and close its file
            control.send(marshal.dumps(("exit", pid, -code if code < 0 else code << 8)))
