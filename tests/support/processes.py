"""Processes of `qworker`. Comes from: tests that start and stop them. Goes to: subprocess."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

SLOW = 30.0


class Started:
    """A process of `qworker` and its output. arguments: of the command line."""

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, "-m", "qworker", *arguments]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._silent = False
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()
        with self._said:
            self._silent = True
            self._said.notify_all()

    def says(self, words: str, times: int = 1) -> str:
        """Wait until these words occur that many times in the output; return the line."""

        def found() -> list[str]:
            return [line for line in self.lines if words in line][times - 1 :]

        with self._said:
            self._said.wait_for(lambda: bool(found()) or self._silent, SLOW)
        assert found(), f"never said {words!r}:\n" + "\n".join(self.lines)
        return found()[0]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        code = self.process.wait(SLOW)
        self._reader.join(SLOW)
        return code
