"""ending: what ends a cluster along with the program that has started it.

Comes from:  ``Cluster.start()``, in the program; ``Cluster.run()``, in the cluster's process.
Goes to:     ``Cluster.stop()``; a signal to this process.
Thread:      the program's main thread, which signals interrupt; in the cluster its own thread.

A signal with a handler of the program is left to the program. However it ends, the cluster notices, and ends
after its running tasks.
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
"""Signals that end a program, with their usual handlers."""


class Started(Protocol):
    """A cluster in a separate process."""

    def stop(self) -> bool: ...


_started: list[tuple[int, Started]] = []
"""Clusters, each with the process that has started it. The main thread's."""


def with_this_program(cluster: Started) -> None:
    """Stop *cluster* when TERM or INT ends this program, and only then end it. Does nothing outside the main
    thread, which alone can set signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    _started.append((os.getpid(), cluster))
    for number, usual in _ENDS.items():
        if signal.getsignal(number) is usual:
            signal.signal(number, _on_signal)


def _on_signal(number: int, frame: FrameType | None) -> None:
    while _started:
        pid, cluster = _started.pop()
        if pid == os.getpid():  # else we are another child of theirs
            cluster.stop()
    usual: Any = _ENDS[signal.Signals(number)]
    signal.signal(number, usual)
    os.kill(os.getpid(), number)


def with_our_parent(is_stopping: Callable[[], bool]) -> None:
    """End this process, a cluster's, when its parent has ended; unless *is_stopping* returns that it is about
    to. Call it when all processes of the cluster are forked."""
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
    """Move to a new process group: Ctrl-C is for the program, which decides about the cluster."""
    with suppress(OSError):
        os.setpgid(0, 0)
