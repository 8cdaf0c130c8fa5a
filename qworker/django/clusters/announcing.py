"""announcing: publishes a cluster's status through Django's cache, if its broker cannot store it.

Comes from:  the worker of a cluster on SQS, or on a custom broker.
Goes to:     ``Broker.set_stat()``, one key for each cluster; read back as Presence.
Thread:      status, for the component; any for the functions.

The status is signed like a package, so it cannot be forged. It is a dictionary of plain values, so that
clusters of different versions can see each other.
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
"""How long a silent cluster stays visible."""


class Announcer(ThreadComponent):
    """Publishes a worker's status each second. snapshot: returns it. on_crash: as for ThreadComponent."""

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
        except Exception as error:  # noqa: BLE001 - an unavailable cache must not stop the worker
            if not self._failing:
                logger.warning(
                    "the state of this cluster cannot be stored in the cache %r: %s", conf.cache, error
                )
            self._failing = True
        return INTERVAL_SECONDS

    def quiet(self) -> None:
        """Publish at once and continue: monitors should see the worker stop."""
        self.wake()


def announce(broker: Broker, presence: Presence) -> None:
    """Publish *presence* for KEPT_SECONDS. Raises errors of the cache."""
    broker.set_stat(
        f"{_beginning()}:{presence.name}", SignedPackage.dumps(presence.plain(), True), KEPT_SECONDS
    )


def announced(broker: Broker) -> list[Presence]:
    """Return the published workers of this project. Values with invalid signatures are left out."""
    found = []
    for text in broker.get_stats(f"{_beginning()}:*"):
        try:
            state = SignedPackage.loads(text)
        except BadSignature:
            continue
        if isinstance(state, Mapping):
            found.append(as_presence(state))
    return sorted(found, key=lambda worker: worker.started)


def as_presence(worker: Presence | Mapping[str, Any]) -> Presence:
    """Return *worker* as a Presence. Fields that are missing in a mapping have their defaults."""
    if isinstance(worker, Presence):
        return worker
    record = Presence(
        worker["name"], worker["pid"], tuple(worker["queues"]), worker["concurrency"], worker["started"]
    )
    return from_text(json.dumps(dict(worker)), record)


def _beginning() -> str:
    return f"django_q:{conf.prefix}:cluster"
