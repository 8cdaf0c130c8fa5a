"""Brokers to break: for each kind a private server, a proxy in front of it, and a Site whose workers use
both.

Comes from:  private_servers.py, proxy.py, harness.py.
Goes to:     test_broker_faults.py and nemesis.py; the Site also to the tests of all brokers that are servers.
Thread:      the test's; a Stream sends from its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qworker import QWorker
from qworker.errors import QWorkerError
from qworker.naming import task_id
from tests.acceptance.harness import REPOSITORY, TASKS, Site
from tests.acceptance.nats_server import Nats
from tests.acceptance.private_servers import MariaDB, PostgreSQL, RabbitMQ, Redis, Server
from tests.acceptance.proxy import Proxy

FINAL = ("SUCCESS", "FAILURE", "REVOKED")


class Options(dict[str, Any]):
    """A setting that the client takes as a dict, and that is JSON in the environment."""

    def __str__(self) -> str:
        return json.dumps(self)


class RemoteSite(Site):
    """A Site on a server. broker: its URL for workers and senders. direct: its URL for the test's own
    queries, without the proxy. results: the URL of the result backend; None: the broker if it supports
    results, or else a file here."""

    def __init__(
        self, path: Path, broker: str, direct: str, results: str | None = None, **settings: Any
    ) -> None:
        results_direct = results or _results(direct, path)
        results = results or _results(broker, path)
        super().__init__(path, broker=broker, result_backend=results, **settings)
        self._looker = QWorker("looker", broker=direct, result_backend=results_direct, set_as_current=False)
        self._states: dict[str, str] = {}

    def call(self, task: str, *args: Any, **options: Any) -> str | None:
        """Like send(), but if sending raises, the call is unsure, and None is returned."""
        id, now = task_id(), time.time()
        try:
            self.client.send_task(task, args, task_id=id, **options)
        except QWorkerError:
            self.unsure[id] = task
            return None
        if "countdown" in options:
            self.due[id] = now + options["countdown"]
        self.sent[id] = (task, args, options)
        return id

    def qworker(self, *words: str, code: int = 0, **environment: str) -> str:
        """The output of a command; including its errors if it should fail. There must be no traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "qworker", *words],
            cwd=REPOSITORY,
            env={**self.environment(app=TASKS), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        assert "Traceback" not in said
        return said if code else done.stdout

    # -- looking --

    def states(self) -> dict[str, str]:
        self._learn(list(self.sent))
        return dict(self._states)

    def pending(self) -> set[str]:
        """The ids of accepted calls that have no final state yet."""
        missing = {id for id in list(self.sent) if self._states.get(id) not in FINAL}
        self._learn(list(missing))
        return {id for id in missing if self._states.get(id) not in FINAL}

    def _learn(self, ids: list[str]) -> None:
        for id, meta in self._looker.backend.get_many(ids).items():
            self._states[id] = meta["status"]

    def error(self, id: str) -> BaseException:
        error = self._looker.AsyncResult(id).result
        assert isinstance(error, BaseException), error
        return error

    def dead(self) -> dict[str, str]:
        return {
            str(json.loads(dead.headers)["id"]): dead.reason
            for dead in self._looker.broker.admin.dead(limit=10_000)
        }

    def waiting(self) -> int:
        return sum(queue.ready + queue.delayed + queue.leased for queue in self._looker.broker.admin.queues())

    def left(self) -> list[str]:
        queues = [
            f"{queue}"
            for queue in self._looker.broker.admin.queues()
            if queue.ready + queue.delayed + queue.leased
        ]
        return queues + [f"worker {worker.name}" for worker in self._looker.workers()]

    def drained(self, seconds: float = 60.0, but: Collection[str] = ()) -> None:
        """Wait until every accepted call has ended, *but* those of some tasks, and the broker is empty,
        including calls that were unsure."""

        def done() -> bool:
            with suppress(QWorkerError):
                return self.waiting() == 0 and all(self.sent[id][0] in but for id in self.pending())
            return False

        try:
            self.until(done, "everything to end", seconds)
        except AssertionError as error:
            left = self.pending()
            error.add_note(f"{len(left)} of {len(self.sent)} have not ended")
            error.add_note("\n".join(f"{id} {self.sent[id]}" for id in sorted(left)[:5]))
            with suppress(QWorkerError):
                error.add_note(f"queues: {self._looker.broker.admin.queues()}")
            raise

    def close(self) -> None:
        super().close()
        self._looker.close()

    def __enter__(self) -> RemoteSite:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _results(broker: str, path: Path) -> str:
    kind = broker.partition(":")[0]
    return {"redis": broker, "postgresql": f"db+{broker}"}.get(kind, f"sqlite:///{path / 'results.db'}")


_NEW_VHOSTS = (
    '[begin rabbit_vhost:add(Name, <<"test">>), '
    'rabbit_auth_backend_internal:set_permissions(<<"guest">>, Name, <<".*">>, <<".*">>, <<".*">>, '
    '<<"test">>) end || Name <- [%s]].'
)
_VHOSTS = 8
"""How many are created at a time: rabbitmqctl starts an Erlang VM, which takes half a second of CPU time."""


class Stream:
    """Calls one task after the other, *rate* per second, from its own thread, until it is stopped.

    pick: the task, its arguments and options for the number of a call. Exceptions of calls are ignored.
    """

    def __init__(
        self,
        site: RemoteSite,
        rate: float = 20.0,
        pick: Callable[[int], tuple[str, tuple[Any, ...], dict[str, Any]]] = lambda number: (
            "work",
            (number, 0.01),
            {},
        ),
    ) -> None:
        self._site, self._rate, self._pick = site, rate, pick
        self._ended = threading.Event()
        self.slowest = 0.0
        """Duration of the slowest call in seconds."""
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(1 / self._rate):
            task, args, options = self._pick(number)
            began = time.monotonic()
            self._site.call(task, *args, **options)
            self.slowest = max(self.slowest, time.monotonic() - began)
            number += 1

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(60.0)
        assert not self._thread.is_alive(), "a call does not return"


class Broken:
    """A server to break, and the proxy in front of it.

    url: through the proxy. direct: without it.
    """

    def __init__(self, server: Server) -> None:
        self.server: Any = server
        self.proxy: Proxy
        self.url = self.direct = ""
        self._uses = 0
        self._vhosts: list[str] = []
        """Virtual hosts that no test has used."""

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """The emptied server behind a new proxy. All faults are undone afterwards."""
        self.direct = self._emptied()
        try:
            with Proxy(self.server.port) as self.proxy:
                self.url = self.proxy.url(self.direct)
                yield
        finally:
            self.server.thaw()
            if self.server.process is None or self.server.process.poll() is not None:
                self.server.start()
            self.server.wait()

    def _emptied(self) -> str:
        """Remove the data of earlier tests; return the URL to use."""
        self._uses += 1
        server = self.server
        if isinstance(server, Redis):
            server.do("FLUSHALL")
        elif isinstance(server, PostgreSQL):
            server.do("DROP SCHEMA public CASCADE")
            server.do("CREATE SCHEMA public")
        elif isinstance(server, MariaDB):
            server.do("DROP DATABASE test")
            server.do("CREATE DATABASE test", database=None)
        elif isinstance(server, RabbitMQ):
            if not self._vhosts:
                self._vhosts = [f"test{self._uses}.{number}" for number in range(_VHOSTS)]
                server.do("eval", _NEW_VHOSTS % ", ".join(f'<<"{name}">>' for name in self._vhosts))
            return f"{server.url.rstrip('/')}/{self._vhosts.pop()}"
        elif isinstance(server, Nats):
            server.reset()
        return str(server.url)
