"""A private NATS server with JetStream, whose store survives a kill, or can be deleted.

Comes from:  test_nats.py, tests/integration/test_nats_store.py.
Goes to:     nats-server, from Debian or elsewhere.
Thread:      the test's; the kernel kills the server if the test's process dies.
"""

from __future__ import annotations

import os
import shutil
import socket
from typing import Any

import pytest

from qworker.conf import Settings
from qworker.transports.nats.broker import open_broker
from tests.acceptance.private_servers import Server

PROGRAM = shutil.which("nats-server") or "/usr/sbin/nats-server"


class Nats(Server):
    """Every client needs the password."""

    binary = "nats-server"

    @property
    def url(self) -> str:
        return f"nats://qworker:s3cr3t@127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Only checks for the program: it creates its store itself."""
        if not os.access(PROGRAM, os.X_OK):
            (pytest.fail if os.environ.get("CI") else pytest.skip)("nats-server is not installed")

    def command(self) -> list[str]:
        return [
            PROGRAM, "-js", "-sd", str(self.directory / "store"), "-a", "127.0.0.1", "-p", str(self.port),
            "--user", "qworker", "--pass", "s3cr3t",
        ]  # fmt: skip

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as connection:
                return connection.recv(5) == b"INFO "
        except OSError:
            return False

    def lose(self) -> None:
        """Delete its data; it must not run."""
        shutil.rmtree(self.directory / "store", ignore_errors=True)

    def broker(self, **settings: Any) -> Any:
        return open_broker(self.url, Settings(settings))

    def counts(self, queue: str) -> tuple[int, int]:
        """The numbers of ready and of leased messages of *queue*."""
        broker = self.broker()
        try:
            (info,) = broker.admin.depths([queue])
            return info.ready, info.leased
        finally:
            broker.close()

    def kept(self) -> int:
        """The number of messages on its disk, in all queues. (A consumer's own counts are unreliable after
        kill -9.)"""
        broker = self.broker()
        try:
            server = broker.admin._server
            connection = server.connect()
            found = connection.ask(f"STREAM.INFO.{server.layout.stream}")["state"]["messages"]
            connection.release()
            return int(found)
        finally:
            broker.close()

    def reset(self) -> None:
        """Delete all streams."""
        broker = self.broker()
        try:
            connection = broker.admin._server.connect()
            for found in connection.ask("STREAM.NAMES").get("streams") or ():
                connection.ask(f"STREAM.DELETE.{found}")
            connection.release()
        finally:
            broker.close()
