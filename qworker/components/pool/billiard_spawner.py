"""BilliardSpawner: children that import the app anew, for systems without the zygote.

Comes from:  ProcessPool, with the start methods "spawn" and "forkserver".
Goes to:     billiard's contexts of those names.
Thread:      pool thread, and one thread for each child, which waits for the child's exit.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import billiard

from qworker import logs
from qworker.components.pool import child_main
from qworker.components.pool.spawner import Notice
from qworker.naming import import_object


class BilliardSpawner:
    """Children of billiard's ``spawn`` or ``forkserver`` context, which import the app anew.

    app_path: ``module:attribute`` of the app, for the children.
    """

    def __init__(self, method: str, app_path: str) -> None:
        # billiard checks every possible signal number, including those reserved by the C library.
        warnings.filterwarnings("ignore", "invalid signal number", RuntimeWarning)
        self._context = billiard.get_context(method)
        self._app_path = app_path
        self._processes: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._notices: list[Notice] = []  # under _lock
        self._read, self._write = os.pipe()

    def fileno(self) -> int:
        return self._read

    def spawn(self, jobs: socket.socket, tokens: int, orders: int, settings: Mapping[str, Any]) -> None:
        from billiard.reduction import DupFd

        process = self._context.Process(
            target=_bootstrap,
            args=(
                self._app_path,
                [DupFd(file) for file in (jobs.fileno(), tokens, orders)],
                dict(settings),
                logs.chosen,
            ),
            name=f"child-{settings['index']}",
        )
        # Ctrl-C goes to all processes of a terminal, and would end the fork server and a starting child.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        except (ConnectionError, EOFError) as error:
            _forget_server()
            raise OSError(f"the fork server has died ({error!r})") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._processes[process.pid] = process
        self._notify(("up", settings["index"], process.pid))
        threading.Thread(target=self._await, args=(process,), name=f"wait {process.pid}", daemon=True).start()

    def _await(self, process: Any) -> None:
        ready = select.poll()
        ready.register(process.sentinel, select.POLLIN)
        ready.poll()
        process.join(1.0)
        code = process.exitcode or 0
        self._processes.pop(process.pid, None)
        self._notify(("exit", process.pid, -code if code < 0 else code << 8))

    def _notify(self, notice: Notice) -> None:
        with self._lock:
            self._notices.append(notice)
        os.write(self._write, b"!")

    def receive(self) -> list[Notice]:
        os.read(self._read, 4096)
        with self._lock:
            notices, self._notices = self._notices, []
        return notices

    def living(self) -> int:
        return len(self._processes)

    def close(self) -> None:
        for pid in list(self._processes):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def _forget_server() -> None:
    """Make billiard start another fork server, because it does not notice that one has died."""
    from billiard.forkserver import _forkserver as server

    with server._lock:
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_alive_fd = None


def _bootstrap(
    app_path: str, duplicates: Sequence[Any], settings: Mapping[str, Any], logging: logs.SetUp | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # for programs that tasks start
    app = import_object(app_path)
    if logging is not None:  # a forked child would inherit this
        logs.setup(app.conf, *logging)
        logs.redirect_stdouts(app.conf)
    app.finalize()
    files = [duplicate.detach() for duplicate in duplicates]
    threading.Thread(target=_die_with, args=(files[0],), name="watch", daemon=True).start()
    os._exit(child_main.main(app, socket.socket(fileno=files[0]), files[1], files[2], settings))


def _die_with(jobs: int) -> None:
    """Kill this process when the worker at the other end of its socket has died."""
    hung_up = select.poll()
    hung_up.register(jobs, 0)
    hung_up.poll()
    os.kill(os.getpid(), signal.SIGKILL)
