"""A private MongoDB, played by mongoeco: a process that can be killed and restarted.

Comes from:  test_more_brokers.py, test_mongodb.py.
Goes to:     tests/support/mongodb_server.py.
Thread:      the test's; the kernel kills the server if the test's process dies.
"""

from __future__ import annotations

import socket

from tests.acceptance.private_servers import Server
from tests.servers import REPOSITORY, mongodb_url, require

PYTHON = REPOSITORY / ".venv-mongoeco" / "bin" / "python"


class Mongo(Server):
    """keeps: whether its data survives a restart, in a file, which is slow. options: further options of
    the stand-in, such as ``replica_set="rs0"``."""

    binary = "mongoeco"

    def __init__(self, keeps: bool = False, **options: object) -> None:
        self._keeps = keeps
        super().__init__(**options)

    def prepare(self) -> None:
        """Nothing to do: it creates its file itself."""
        require("mongodb")  # reports what is missing

    @property
    def url(self) -> str:
        return mongodb_url(self.port)

    def command(self) -> list[str]:
        script = REPOSITORY / "tests" / "support" / "mongodb_server.py"
        given = {"port": str(self.port), **self.options}
        if self._keeps:
            given["file"] = str(self.directory / "mongo.db")
        words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
        return [str(PYTHON), str(script), *words]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0):
                return True
        except OSError:
            return False
