"""real_servers: private servers for real fleets, behind proxies so that they can be broken.

Comes from:  ``real``, with the name of a pair of stores.
Goes to:     the servers' binaries (``tests.acceptance.private_servers``) and a proxy for each.
Thread:      the one that runs cases.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.brokers import Broken
from tests.acceptance.nats_server import Nats
from tests.acceptance.private_servers import serving
from tests.acceptance.proxy import REFUSE
from tests.simulation.case import Fault
from tests.simulation.real_worker import Place

STORES: dict[str, tuple[str, str]] = {
    "redis": ("redis", ""),
    "redis+other": ("redis", "other"),
    "postgresql": ("postgresql", ""),
    "mariadb": ("mariadb", ""),
    "rabbitmq+redis": ("rabbitmq", "redis"),
    "rabbitmq+rpc": ("rabbitmq", "rpc"),
    "nats+redis": ("nats", "redis"),
}
"""Servers of messages and results. "": the same; "other": another database of it; "rpc": by messages."""
AWAY = ("killed", "frozen", "refused", "mute")
"""Ways of not answering. mute: the server executes requests, but answers do not arrive."""


def results_url(broker: str, results: str, server: str) -> str:
    """Return the URL of the results. server: the URL of their server, if it is another one."""
    if results == "rpc":
        return "rpc://"
    if results == "other":
        return f"{broker.rpartition('/')[0]}/1"
    if results:
        return server
    return broker if broker.startswith("redis") else f"db+{broker}"


class Servers:
    """Servers, started on first use, and running until close()."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._started: dict[str, Broken] = {}

    def _server(self, kind: str) -> Broken:
        if kind not in self._started:
            make = Nats if kind == "nats" else None
            self._started[kind] = Broken(self._stack.enter_context(serving(kind, make)))
        return self._started[kind]

    @contextmanager
    def opened(self, stores: str, directory: Path) -> Iterator[tuple[Place, Faults]]:
        """Yield the place of *stores* behind proxies, with emptied servers, and their Faults."""
        messages, results = STORES[stores]
        with ExitStack() as stack:
            broker = self._server(messages)
            stack.enter_context(broker.exposed())
            other = broker
            if results not in ("", "other", "rpc"):
                other = self._server(results)
                stack.enter_context(other.exposed())
            place = Place(broker.url, results_url(broker.url, results, other.url), str(directory))
            yield place, Faults({"broker": broker, "results": other})

    def close(self) -> None:
        self._stack.close()


class Faults:
    """Breaks servers, and heals them. broken: the servers by role."""

    def __init__(self, broken: dict[str, Broken]) -> None:
        self.broken = broken

    def begin(self, fault: Fault) -> None:
        server: Any = self.broken[fault.node].server
        proxy = self.broken[fault.node].proxy
        if fault.kind == "cut":
            for _ in range(fault.nth):
                proxy.cut()
                time.sleep(0.05)
        elif fault.kind == "slow":
            proxy.up.delay = proxy.down.delay = 0.05
        elif fault.method == "killed":
            server.kill()
        elif fault.method == "frozen":
            server.freeze()
        elif fault.method == "refused":
            proxy.mode = REFUSE
            proxy.cut()
        else:
            proxy.down.open = False

    def end(self, fault: Fault) -> None:
        broken = self.broken[fault.node]
        if fault.method == "killed":
            if broken.server.process is None:
                broken.server.start()
        elif fault.method == "frozen":
            broken.server.thaw()
        else:
            if fault.method == "mute":
                broken.proxy.cut()
            broken.proxy.heal()
