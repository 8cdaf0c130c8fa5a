"""ending: ends a cluster with the program that started it.

Comes from:  ``Cluster.start()``, in the program; ``Cluster.run()``, in the cluster's process.
Goes to:     ``Cluster.stop()``; a signal to this process.
Thread:      the program's main thread, in signal handlers; in the cluster, a separate thread.

A signal for which the program has its own handler is left to it. However the program ends, the cluster
notices, and ends after its running tasks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

LOOK_SECONDS = 5.0
_ENDS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""Signals that end a program, and their default handlers."""


class Started(Protocol):
    """A cluster in a separate process."""

    def stop(self) -> bool: ...


_started: list[tuple[int, Started]] = []
"""Clusters, each with the id of the process that started it. Main thread only."""


def with_this_program(cluster: Started) -> None:
    """When TERM or INT ends this program, stop *cluster* first. Does nothing outside the main thread, which
    alone can set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    _started.append((os.getpid(), cluster))
    for number, usual in _ENDS.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    while _started:
        pid, cluster = _started.pop()
        if pid == os.getpid():  # else this is another forked child
            cluster.stop()
    usual: Any = _ENDS[signal.Signals(number)]
    signal.signal(number, usual)
    os.kill(os.getpid(), number)


def with_our_parent(is_stopping: Callable[[], bool]) -> None:
    """End this cluster's process when its parent has ended, unless *is_stopping* returns True. Call it after
    all processes of the cluster are forked."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        while parent.is_alive():
            parent.join(LOOK_SECONDS)
        if not is_stopping():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def leave_the_group() -> None:
    """Move to a new process group: Ctrl-C must reach only the program, which stops the cluster."""
    with suppress(OSError):
        os.setpgid(0, 0)
