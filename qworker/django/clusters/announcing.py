"""announcing: what a cluster tells of itself through Django's cache, where its broker cannot keep that.

Comes from:  the worker of a cluster on SQS, or on a broker of the project's own.
Goes to:     ``Broker.set_stat()``, under a key for each cluster; back as Presence.
Thread:      status, for the component; any for the functions.

What is told is signed, as packages are: nobody else can make up a cluster. It is a dictionary of plain
values, so that clusters of several versions can see each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from qworker.clock import Clock
from qworker.components.component import ThreadComponent
from qworker.django.brokers import Broker
from qworker.django.conf import conf, logger
from qworker.django.signing import BadSignature, SignedPackage
from qworker.transports.presence import Presence, from_text

INTERVAL_SECONDS = 1.0
KEPT_SECONDS = 3
"""So long a cluster is seen that says no more."""


class Announcer(ThreadComponent):
    """Says each second what a worker does. snapshot: what is to be told. on_crash: as a ThreadComponent's."""

    name = "status"

    def __init__(
        self,
        clock: Clock,
        on_crash: Callable[[str, BaseException], None],
        broker: Broker,
        snapshot: Callable[[], Presence],
    ) -> None:
        super().__init__(clock, on_crash)
        self._broker = broker
        self._snapshot = snapshot
        self._failing = False  # this component's thread

    def step(self, now: float) -> float:
        try:
            announce(self._broker, self._snapshot())
            self._failing = False
        except Exception as error:  # noqa: BLE001 - a cache that is away, of any kind, stops no worker
            if not self._failing:
                logger.warning("the cache %r does not take the state of this cluster: %s", conf.cache, error)
            self._failing = True
        return INTERVAL_SECONDS

    def quiet(self) -> None:
        """Go on: who watches is to see that the worker stops."""
        self.wake()


def announce(broker: Broker, presence: Presence) -> None:
    """Tell of a worker for the next KEPT_SECONDS. Raises what the cache raises."""
    broker.set_stat(
        f"{_beginning()}:{presence.name}", SignedPackage.dumps(presence.plain(), True), KEPT_SECONDS
    )


def announced(broker: Broker) -> list[Presence]:
    """Return the workers of this project that are told of. What somebody else has signed is left out."""
    found = []
    for text in broker.get_stats(f"{_beginning()}:*"):
        try:
            told = SignedPackage.loads(text)
        except BadSignature:
            continue
        if isinstance(told, Mapping):
            found.append(as_presence(told))
    return sorted(found, key=lambda worker: worker.started)


def as_presence(worker: Presence | Mapping[str, Any]) -> Presence:
    """Return *worker* as a Presence. A field that a mapping lacks is left at its default."""
    if isinstance(worker, Presence):
        return worker
    record = Presence(
        worker["name"], worker["pid"], tuple(worker["queues"]), worker["concurrency"], worker["started"]
    )
    return from_text(json.dumps(dict(worker)), record)


def _beginning() -> str:
    return f"django_q:{conf.prefix}:cluster"
