"""The interface of a component, and the loop of its thread.

Comes from:  Worker, which starts, quiets and stops components in the order of the Assembly.
Goes to:     each component's ``step``, which does one turn and returns the seconds until the next one.
Thread:      one for each component. It waits here, or in its ``step`` for what that needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from qworker.clock import Clock

logger = logging.getLogger(__name__)


class Component:
    """A part of a worker. Methods may be called in any order, and twice.

    name: its name in the log.
    """

    name = "component"

    def start(self) -> None:
        """Start. Raises QWorkerError if that fails."""

    def quiet(self) -> None:
        """Accept nothing new."""

    def stop(self, deadline: float = 0.0) -> None:
        """Begin to stop; join() waits for the end. Unfinished work is abandoned at the monotonic *deadline*.
        If called again, the last deadline applies, even if it is earlier."""

    def problems(self) -> Sequence[str]:
        """Return problems that a restart would not solve, for health reports. Any thread."""
        return ()

    def join(self, seconds: float) -> bool:
        """Wait up to *seconds* for the thread to end; return whether it has ended, or there is none."""
        return True


class ThreadComponent(Component):
    """A component with a thread.

    - name: also the name of the thread.
    - clock: the source of step()'s *now*, in monotonic seconds.
    - on_crash: called with the component's name and the error if the thread raises.
    """

    def __init__(self, clock: Clock, on_crash: Callable[[str, BaseException], None]) -> None:
        self.clock = clock
        self._on_crash = on_crash
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._woken = threading.Event()

    def step(self, now: float) -> float | None:
        """Do one turn; return the seconds until the next one (0: at once, None: after wake())."""
        raise NotImplementedError

    def wait(self, seconds: float | None) -> None:
        """Wait up to *seconds* for wake()."""
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """End a wait() early. Any thread."""
        self._woken.set()

    def start(self) -> None:
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def stop(self, deadline: float = 0.0) -> None:
        """End the thread after its current turn."""
        self._stop.set()
        self.wake()

    def join(self, seconds: float) -> bool:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)
        return not self.alive

    @property
    def alive(self) -> bool:
        """Whether its thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.opened()
            while not self._stop.is_set():
                delay = self.step(self.clock.monotonic())
                if delay is None or delay > 0:
                    self.wait(delay)
        except BaseException as error:  # the worker stops, and reports the error
            logger.debug("component %s crashed", self.name, exc_info=True)
            self._on_crash(self.name, error)
            self._stop.wait()  # closed() must run after the parts that are stopped earlier
        finally:
            self.closed()

    def opened(self) -> None:
        """Called first on the thread."""

    def closed(self) -> None:
        """Called last on the thread, after stop(), even if it crashed."""
