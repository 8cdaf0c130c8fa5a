"""SignalSource: every signal that a runner has to deliver, whoever raised it.

Comes from:  the clockwork, and the sockets of the runner's directories.
Goes to:     the runner's thread, which has a process run each; and the directories, where it is announced.
Thread:      that of the runner.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from qworker.errors import SpoolError
from qworker.spooler import runtime
from qworker.spooler.clockwork import Clockwork, Due
from qworker.spooler.signal_socket import SignalSocket
from qworker.spooler.signal_table import SPOOLER, SignalTable

logger = logging.getLogger(__name__)


class SignalSource:
    """For who works off *directories*, one at least. start() and stop() may be called twice.

    clockwork: None for one that goes by the local time.
    """

    def __init__(
        self, directories: Sequence[str], table: SignalTable, *, clockwork: Clockwork | None = None
    ) -> None:
        self._directories = tuple(map(os.path.realpath, directories))
        self._table = table
        self._clockwork = Clockwork(table) if clockwork is None else clockwork
        self._sockets: dict[str, SignalSocket] = {}

    def start(self) -> None:
        """Announce this process, and receive signals. Where that cannot be done, the log says so, and jobs
        are run all the same."""
        for directory in self._directories:
            if directory not in self._sockets:
                try:
                    runtime.announce(directory)
                    self._sockets[directory] = SignalSocket(directory)
                except SpoolError as error:
                    logger.warning("no signals from other processes for %s: %s", directory, error)

    def stop(self) -> None:
        """Be announced no more, and receive nothing."""
        for directory, receiver in self._sockets.items():
            receiver.close()
            runtime.withdraw(directory)
        self._sockets.clear()

    def filenos(self) -> list[int]:
        """What can be read when another process has raised a signal."""
        return [receiver.fileno() for receiver in self._sockets.values()]

    def due(self, now: float) -> list[Due]:
        """The signals to deliver now, each with the directory whose spooler is to run it, one of these. Never
        waits."""
        found = [
            Due(signum, self._directories[0] if target == SPOOLER else os.path.realpath(target))
            for signum, target in self._clockwork.due(now)
        ]
        for directory, receiver in self._sockets.items():
            for signum in receiver.read():
                if self._table.is_registered(signum):
                    found.append(Due(signum, directory))
                else:
                    logger.warning("signal %d came for %s, and nothing has registered it", signum, directory)
        return [due for due in found if due.target in self._directories]

    def next_time(self, now: float) -> float:
        """When to ask again if nothing can be read before; infinity for never."""
        return self._clockwork.next_time(now)
