"""own_servers: runs a command with servers of its own: ``python -m tests.own_servers make test``.

The tests kill processes, never the machine, so nothing has to reach a disk: with the system's servers it is
flushed some 400,000 times in a run of all tests, most of them by MariaDB, which takes far longer where a disk
is slow. So all files are in memory, if there is room.

Comes from:  continuous integration, and contributors.
Goes to:     the command, with a variable for each server that none names yet; its exit code is ours.
Thread:      one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.acceptance.nats_server import Nats
from tests.acceptance.private_servers import MariaDB, PostgreSQL, RabbitMQ, Redis, Server, missing

MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30
"""Bytes that the tests and servers may need there; twice as many must be available in all."""


class OpenNats(Nats):
    """Needs no password, since proxies of the tests have none."""

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return super().command()[:-4]


SERVERS: dict[str, tuple[str, Callable[[], Server]]] = {
    "REDIS": ("redis", lambda: Redis(appendonly="no")),
    "POSTGRESQL": (
        "postgresql",
        lambda: PostgreSQL(
            full_page_writes="off",
            synchronous_commit="off",
            max_connections=400,
            shared_buffers="128MB",
            max_wal_size="256MB",
        ),
    ),
    "MYSQL": (
        "mariadb",
        lambda: MariaDB(
            **{
                "innodb-flush-method": "nosync",
                "innodb-flush-log-at-trx-commit": 0,
                "innodb-buffer-pool-size": "128M",
                "sync-frm": 0,
                "max-connections": 400,
            }
        ),
    ),
    "RABBITMQ": ("rabbitmq", RabbitMQ),
    "NATS": ("nats", OpenNats),
}
"""By the name in their variable: what must be installed, and how they are started."""


def main(command: list[str]) -> int:
    """Run *command*; return its exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as stack:
        if _has_room():
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="q", dir=MEMORY, ignore_cleanup_errors=True)
            )
            Path(directory).chmod(0o1777)  # servers run as other users
            os.environ["TMPDIR"] = tempfile.tempdir = directory
        for name, (kind, start) in SERVERS.items():
            variable = f"TEST_QWORKER_{name}_URL"
            if os.environ.get(variable):
                continue
            if (absent := missing(kind)) is not None:
                print(f"own_servers: {absent} is not installed, so there is no {kind}", file=sys.stderr)
                continue
            try:
                server = start()
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                print(f"own_servers: {kind} does not start, the usual one is used: {error}", file=sys.stderr)
                continue
            stack.callback(server.close)
            os.environ[variable] = server.url
        return subprocess.run(command).returncode


def _has_room() -> bool:
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return False
    available = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")
    )
    return int(available.split()[1]) * 1024 > 2 * ROOM


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
