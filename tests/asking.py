"""Which servers were asked for: a test that reaches for any other of those that tests know is in error.

Comes from:  ``servers.require()``, which asks; every connection of this process, or of one forked from it.
Goes to:     ``conftest``, which fails the test; whoever connects is told that nobody listens there.

What one test of a process has asked for, all later ones may reach: what it left behind, such as results of
Celery's, connects whenever it is collected. The part of the suite that continuous integration runs where
there is no server at all shows each test by itself, and the programs that it starts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
Place = tuple[str, int]


class Asking:
    """places: gives the name of each place that tests know, when it is asked."""

    def __init__(self, places: Callable[[], dict[Place, str]]) -> None:
        self._places = places
        self._main = os.getpid()
        self._looking = threading.local()
        self.asked: set[str] = set()
        self.uninvited: list[str] = []
        """What was reached for and not asked for, until somebody has told of it."""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """This thread may connect to anything meanwhile."""
        before, self._looking.now = getattr(self._looking, "now", False), True
        try:
            yield
        finally:
            self._looking.now = before

    def check(self, host: Any, port: Any) -> None:
        """Raise ConnectionRefusedError for a server that nobody has asked for."""
        if getattr(self._looking, "now", False):
            return
        name = self._places().get(("127.0.0.1" if host in LOOPBACK else str(host), int(port)))
        if name is None or name in self.asked:
            return
        self.uninvited.append(f"{name} at {host}:{port}")
        if os.getpid() != self._main:
            sys.stderr.write(f"a test reaches for {name} and has not called require({name!r})\n")
        raise ConnectionRefusedError(f"the test has not called require({name!r})")

    def watch(self) -> None:
        """Check every connection from now on. There is no way back."""

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "socket.connect":
                address = arguments[1]
                if isinstance(address, tuple) and len(address) >= 2:
                    self.check(address[0], address[1])

        sys.addaudithook(hear)
        try:
            import psycopg
            from psycopg import generators
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            return
        connect = generators.connect  # libpq opens sockets of its own

        def checked(conninfo: str, *args: Any, **more: Any) -> Any:
            given = conninfo_to_dict(conninfo)
            host = str(given.get("hostaddr") or given.get("host") or "127.0.0.1")
            if not host.startswith("/"):
                try:
                    self.check(host, given.get("port") or 5432)
                except OSError as error:
                    raise psycopg.OperationalError(str(error)) from error
            return connect(conninfo, *args, **more)

        generators.connect = checked
