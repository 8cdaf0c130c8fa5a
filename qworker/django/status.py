"""Status: what the clusters of a project tell of themselves, as Django-Q has it.

Comes from:  monitors, the commands, and programs.
Goes to:     the presence that each worker publishes through its broker.
Thread:      any.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from qworker.django.engine import app
from qworker.errors import BrokerUnavailable, NotSupported
from qworker.transports.presence import IDLE, STARTING, STOPPING, WORKING, Presence

WORDS = {STARTING: "Starting", IDLE: "Idle", WORKING: "Working", STOPPING: "Stopping", "": "Idle"}
STOPPED = "Stopped"


class Status:
    """What is known of a cluster; one of which nothing is known has stopped.

    - pid, host: where it is. cluster_id: of its own.
    - tob (datetime): since when. timestamp (datetime): when it told this.
    - status (text): Starting, Idle, Working, Stopping or Stopped.
    - workers (process ids). reincarnations: how many of them were replaced.
    - task_q_size, done_q_size: tasks that wait in it, and results of which the broker is to be told.
    - sentinel, pusher, monitor: the process that is all three here; 0 for none.
    """

    def __init__(self, pid: int, cluster_id: Any) -> None:
        self.pid = pid
        self.cluster_id = cluster_id
        self.host = ""
        self.tob: datetime | None = None
        self.timestamp = timezone.now()
        self.reincarnations = 0
        self.status = STOPPED
        self.task_q_size = self.done_q_size = 0
        self.sentinel = self.pusher = self.monitor = 0
        self.workers: list[int] = []

    def __call__(self) -> Status:
        """Return itself: the manual has ``stat`` as a method, and later versions as an attribute."""
        return self

    def uptime(self) -> float:
        """Return for how many seconds it has run."""
        return 0.0 if self.tob is None else (timezone.now() - self.tob) / timedelta(seconds=1)

    def empty_queues(self) -> bool:
        """Tell whether nothing waits in it."""
        return self.task_q_size + self.done_q_size == 0


class Stat(Status):
    """A cluster that lives."""

    def __init__(self, presence: Presence) -> None:
        super().__init__(presence.pid, id_of(presence.name))
        self.host = presence.host or presence.name.partition("@")[2]
        self.tob = datetime.fromtimestamp(presence.started, UTC)
        self.timestamp = datetime.fromtimestamp(presence.seen or presence.started, UTC)
        self.reincarnations = presence.restarts
        self.status = WORDS.get(presence.status, presence.status.capitalize())
        self.task_q_size = presence.waiting
        self.done_q_size = presence.unsettled
        self.sentinel = self.pusher = self.monitor = presence.pid
        self.workers = list(presence.pool)
        self.name = presence.name

    @staticmethod
    def get(*which: Any, broker: Any = None) -> Status:
        """Return the cluster with this id: ``get(cluster_id)``, or ``get(pid, cluster_id)``. One that is not
        there has stopped."""
        wanted = which[-1]
        for each in Stat.get_all(broker):
            if str(each.cluster_id) == str(wanted) or (isinstance(wanted, int) and each.pid == wanted):
                return each
        pid = which[0] if isinstance(which[0], int) else 0
        return Status(pid, wanted)

    @staticmethod
    def get_all(broker: Any = None) -> list[Stat]:
        """Return all clusters of this broker that live; none where it cannot tell."""
        try:
            return [Stat(each) for each in app().broker.admin.workers()]
        except (NotSupported, BrokerUnavailable):
            return []


def node_of(cluster_name: str, cluster_id: uuid.UUID, host: str) -> str:
    """Return the node name of a cluster's worker, by which it is found again."""
    return f"{cluster_name}.{cluster_id.hex}@{host}"


def id_of(node: str) -> uuid.UUID:
    """Return the id of the cluster whose worker is called *node*; of another worker, one that stays the
    same."""
    text = node.partition("@")[0].rpartition(".")[2]
    try:
        return uuid.UUID(hex=text)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_DNS, node)
