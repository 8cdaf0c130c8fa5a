"""PresenceReport: the status that this worker publishes through its broker.

Comes from:  the pool, the waiting requests, the acks and the ledger, as snapshots.
Goes to:     the consumer, which sends the text with the renewal of the lease.
Thread:      listener.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable

from qworker.clock import Clock
from qworker.components.pool.contract import TaskPool
from qworker.components.receiving.ack_buffer import AckBuffer
from qworker.components.receiving.ledger import WorkerState
from qworker.components.request import Key
from qworker.components.shutdown import RUNNING
from qworker.components.waiting.inventory import WaitingRequests
from qworker.components.worker_lease import WorkerLease
from qworker.naming import VERSION
from qworker.process.memory import resident
from qworker.transports.lease import Workers
from qworker.transports.presence import (
    IDLE,
    MAX_RUNNING,
    STARTING,
    STOPPING,
    WORKING,
    Presence,
    RunningTask,
    to_text,
)

PYTHON = ".".join(map(str, sys.version_info[:3]))


class PresenceReport:
    """workers: the broker's, None if it has none. phase: returns the worker's phase. The other arguments are
    parts of the worker."""

    def __init__(
        self,
        clock: Clock,
        workers: Workers | None,
        phase: Callable[[], str],
        lease: WorkerLease,
        pool: TaskPool,
        waiting: WaitingRequests,
        acks: AckBuffer,
        state: WorkerState,
    ) -> None:
        self._clock = clock
        self._workers = workers
        self._phase = phase
        self._lease = lease
        self._pool = pool
        self._waiting = waiting
        self._acks = acks
        self._state = state
        self._host = socket.gethostname()
        self._started = clock.now()
        self._began: dict[Key, float] = {}
        """Epoch second at which each running task began; kept, because the wall clock may be adjusted."""
        self._reported: Presence | None = None

    def has_changed(self) -> bool:
        """Whether the status has changed since it was published last."""
        return self._snapshot() != self._reported

    def publish(self) -> None:
        """Let the consumer send the current status. It includes memory, which has_changed() ignores."""
        if self._workers is None:
            return
        self._reported = reported = self._snapshot()
        whole = reported._replace(
            seen=self._clock.now(),
            memory=resident(reported.pid) or 0,
            pool_memory=tuple(resident(pid) or 0 for pid in reported.pool),
        )
        self._workers.consumer.present(to_text(whole))

    def _snapshot(self) -> Presence:
        registration, state = self._lease.registration, self._state
        in_flight, running = self._pool.in_flight(), self._running()
        return Presence(
            name=registration.hostname,
            pid=os.getpid(),
            queues=registration.queues,
            concurrency=registration.concurrency,
            started=self._started,
            host=self._host,
            status=self._status(in_flight),
            pool=tuple(pid for pid in self._pool.info()["processes"] if pid != os.getpid()),
            restarts=self._pool.deaths + self._pool.recycled,
            waiting=self._waiting.ready + max(0, in_flight - len(running)),
            scheduled=self._waiting.scheduled,
            unsettled=len(self._acks),
            busy=len(running),
            running=tuple(running[:MAX_RUNNING]),
            totals=dict(state.totals),
            version=VERSION,
            python=PYTHON,
        )

    def _status(self, in_flight: int) -> str:
        if self._phase() != RUNNING:
            return STOPPING
        if not self._lease.generation:
            return STARTING
        return WORKING if in_flight else IDLE

    def _running(self) -> list[RunningTask]:
        """Return the running tasks, oldest first."""
        found = self._pool.running()
        wall, now = self._clock.now(), self._clock.monotonic()
        known = self._began
        self._began = {
            request.key: known.get(request.key, wall - max(0.0, now - since)) for request, since in found
        }
        tasks = [
            RunningTask(request.id, request.name, self._began[request.key], request.pid, request.leased.queue)
            for request, _ in found
        ]
        return sorted(tasks, key=lambda task: task.started)
