"""MongoDB of a test's own, as mongoeco plays it: a process that may be killed and started again.

Comes from:  test_more_brokers.py, test_mongodb.py.
Goes to:     tests/support/mongodb_server.py.
Thread:      the test's; the kernel kills a server whose test has died.
"""

from __future__ import annotations

import socket

from tests.acceptance.private_servers import Server
from tests.servers import REPOSITORY, mongodb_url, require

PYTHON = REPOSITORY / ".venv-mongoeco" / "bin" / "python"


class Mongo(Server):
    """keeps: whether what it has outlives it, in a file, which makes it slow. options: more of the stand-in,
    as ``replica_set="rs0"``."""

    binary = "mongoeco"

    def __init__(self, keeps: bool = False, **options: object) -> None:
        self._keeps = keeps
        super().__init__(**options)

    def prepare(self) -> None:
        """It makes its file itself."""
        require("mongodb")  # says what is missing

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
