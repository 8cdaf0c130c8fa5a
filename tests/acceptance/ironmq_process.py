"""Our stand-in for IronMQ as a private process that can be killed and restarted. Its data is in a file,
which can be deleted.

Comes from:  test_ironmq.py.
Goes to:     tests/support/ironmq_server.py.
Thread:      the test's; the kernel kills the server if the test's process dies.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.acceptance.harness import REPOSITORY
from tests.acceptance.private_servers import Server
from tests.support.ironmq_server import TOKEN


class IronProcess(Server):
    binary = "ironmq"

    @property
    def url(self) -> str:
        return f"ironmq+http://project:{TOKEN}@127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Nothing to do: it creates its file itself."""

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "tests.support.ironmq_server"),
            *("--port", str(self.port), "--file", str(self._file)),
        ]

    @property
    def _file(self) -> Path:
        return self.directory / "messages"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def answers(self) -> bool:
        try:
            self.tell()
        except OSError:
            return False
        return True

    def tell(self, **what: Any) -> dict[str, Any]:
        """POST /stand-in: see there."""
        return self._ask("/stand-in", what)

    def lose(self) -> None:
        """Delete its data; it must not run."""
        self._file.unlink(missing_ok=True)

    def size(self, queue: str) -> int:
        try:
            return int(self._ask(f"/3/projects/project/queues/{queue}")["queue"]["size"])
        except urllib.error.HTTPError:
            return 0

    def _ask(self, path: str, given: Any = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if given is None else json.dumps(given).encode(),
            {"Authorization": f"OAuth {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
