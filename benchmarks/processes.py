"""A worker under test as a tree of processes: start it, weigh it, stop it, and leave nothing behind.

Members of the tree are found in /proc by session and by a token in their environment, so a child that left
the group is still counted and still ended. Linux only.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

TOKEN = "BENCHMARK_TOKEN"
SERVER_PROCESSES = {
    "redis": "redis-server",
    "rabbitmq": "beam.smp",
    "amqp": "beam.smp",
    "postgresql": "postgres",
    "mariadb": "mariadbd",
    "mysql": "mariadbd",
    "nats": "nats-server",
}
"""What the processes of servers are called, by name or URL scheme."""


def _fields_after_name(process: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the name before them may hold spaces."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def _number(text: str, key: str) -> int:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0])
    return 0


def seconds_of(name: str) -> float:
    """Return the processor time used by the processes called *name* and by their ended children, in seconds;
    0.0 if no such process runs."""
    ticks = 0
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{process}/comm").read_text().strip() == name:
                ticks += sum(map(int, _fields_after_name(int(process))[11:15]))
        except (OSError, IndexError):
            continue  # It ended while we looked.
    return ticks / os.sysconf("SC_CLK_TCK")


class Tree:
    """The process tree of one worker. `started` is the monotonic time just before exec, in nanoseconds."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self.token = uuid.uuid4().hex
        self.log = directory / "worker.log"
        with self.log.open("ab") as log:
            self.started = time.monotonic_ns()
            self.process = subprocess.Popen(
                command,
                env={**environment, TOKEN: self.token},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def members(self) -> list[int]:
        """Process ids of the tree that are alive, zombies left out."""
        return list(self._members())

    def _members(self) -> Iterator[int]:
        mark = f"{TOKEN}={self.token}".encode()
        session = str(self.process.pid)
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                fields = _fields_after_name(int(name))
                if fields[0] in "ZX":
                    continue
                if fields[3] == session or mark in Path(f"/proc/{name}/environ").read_bytes():
                    yield int(name)
            except (OSError, IndexError):
                continue  # It ended while we looked.

    def pss_bytes(self) -> int:
        """Proportional set size summed over the tree: shared pages are counted once."""
        return 1024 * sum(_number(text, "Pss") for text in self._texts("smaps_rollup"))

    def written_bytes(self) -> int:
        """Bytes that the tree has caused to be written to storage so far."""
        return sum(_number(text, "write_bytes") for text in self._texts("io"))

    def cpu_seconds(self) -> float:
        """Processor time that the live members have used so far, to the nanosecond, all threads."""
        total = 0
        for member in self._members():
            for thread in Path(f"/proc/{member}/task").glob("*/schedstat"):
                try:
                    total += int(thread.read_text().split()[0])
                except (OSError, IndexError, ValueError):
                    continue
        return total / 1e9

    def _texts(self, name: str) -> Iterator[str]:
        for member in self._members():
            try:
                yield Path(f"/proc/{member}/{name}").read_text()
            except OSError:
                continue

    def alive(self) -> bool:
        """Whether the main process still runs."""
        return self.process.poll() is None

    def stop(self, number: int = signal.SIGTERM, timeout: float = 15.0) -> float | None:
        """Signal the main process and wait for it. Seconds from signal to exit, or None when it had to be
        killed."""
        began = time.monotonic()
        if self.alive():
            self.process.send_signal(number)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        return time.monotonic() - began

    def kill(self) -> None:
        """End every member of the tree, now. Safe to call twice."""
        for _ in range(20):
            members = self.members()
            for member in members:
                try:
                    os.kill(member, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.process.poll() is not None and not members:
                return
            time.sleep(0.05)
