"""A private Disque: the stand-in, in a process that can be killed and restarted.

Comes from:  test_disque.py; benchmarks.
Goes to:     ``tests/support/disque_server.py``.
Thread:      the test's; the kernel kills the server if the test's process dies.
"""

from __future__ import annotations

import os
import socket
import sys
from contextlib import closing, suppress
from typing import Any

import redis

from tests.acceptance.harness import REPOSITORY
from tests.acceptance.private_servers import Server, free_port


class Disque(Server):
    """nodes: size of the cluster. password: for all nodes."""

    binary = "disque"

    def __init__(self, nodes: int = 1, password: str = "") -> None:
        self.ports = [free_port() for _ in range(nodes)]
        self.password = password
        super().__init__()

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"disque://{login}{','.join(f'127.0.0.1:{port}' for port in self.ports)}"

    def prepare(self) -> None:
        """Nothing to do: it creates its files itself."""

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def command(self) -> list[str]:
        ports = [word for port in self.ports for word in ("--port", str(port))]
        login = ["--password", self.password] if self.password else []
        return [
            *(sys.executable, "-m", "tests.support.disque_server", "--nodes", str(len(self.ports))),
            *("--directory", str(self.directory), *ports, *login),
        ]

    def answers(self) -> bool:
        with suppress(redis.RedisError):
            return bool(self.ask("HELLO"))
        return False

    def ask(self, *words: str | int, node: int = 0) -> Any:
        """The reply of a node."""
        client = redis.Redis(
            host="127.0.0.1", port=self.ports[node], password=self.password or None, protocol=2
        )
        with closing(client):
            return client.execute_command(*words)

    def stop_node(self, node: int, seconds: float) -> None:
        """End a node like kill -9, and restart it after that time."""
        with closing(socket.create_connection(("127.0.0.1", self.ports[node]))) as connected:
            words = ["STANDIN", "stop", str(seconds)]
            text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connected.sendall(f"*{len(words)}\r\n{text}".encode())
            connected.recv(64)

    def counts(self, queue: str) -> tuple[int, int]:
        """The numbers of ready jobs and of other jobs on the first node."""
        ready = self.ask("QLEN", queue)
        _, jobs = self.ask("JSCAN", "0", "COUNT", "100000", "QUEUE", queue)
        return ready, len(jobs) - ready

    def reset(self) -> None:
        for node in range(len(self.ports)):
            self.ask("DEBUG", "FLUSHALL", node=node)
        for fault in ("drop", "half", "slow", "refuse"):
            self.ask("STANDIN", fault, 0)
