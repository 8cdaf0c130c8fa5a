"""Status: the state of a project's clusters, with Django-Q's interface.

Comes from:  monitors, the commands, and programs.
Goes to:     the presence that each worker publishes through its broker; where that keeps none, through
             Django's cache.
Thread:      any.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from qworker.django.brokers import Broker, get_broker
from qworker.django.clusters.announcing import announced, as_presence
from qworker.django.clusters.engine import app
from qworker.django.conf import conf
from qworker.django.execution.cached import is_shared
from qworker.django.transports.databases import is_in_memory
from qworker.django.transports.opening import broker_alias
from qworker.errors import BrokerUnavailable
from qworker.transports.capabilities import WORKERS
from qworker.transports.presence import IDLE, STARTING, STOPPING, WORKING, Presence

WORDS = {STARTING: "Starting", IDLE: "Idle", WORKING: "Working", STOPPING: "Stopping", "": "Idle"}
STOPPED = "Stopped"


class Status:
    """The state of a cluster; without data it has stopped.

    - pid, host: of its main process. cluster_id: its own id.
    - tob (datetime): its start. timestamp (datetime): of this report.
    - status (text): Starting, Idle, Working, Stopping or Stopped.
    - name (text): of its node.
    - workers (process ids). reincarnations: how many of them were replaced.
    - task_q_size, done_q_size: tasks that wait in it, and results not yet reported to the broker.
    - sentinel, pusher, monitor: the process that is all three here; 0 for none.
    """

    def __init__(self, pid: int, cluster_id: Any) -> None:
        self.pid = pid
        self.cluster_id = cluster_id
        self.host = self.name = ""
        self.tob: datetime | None = None
        self.timestamp = datetime.now(UTC)
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
        return 0.0 if self.tob is None else (datetime.now(UTC) - self.tob) / timedelta(seconds=1)

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
    def get(*which: Any, broker: Broker | None = None, **named: Any) -> Status:
        """Return a cluster: ``get(cluster_id)``, or ``get(pid, cluster_id)``, also by these names. The id may
        be a UUID or its text; a process id works as well. A missing cluster has stopped."""
        if which and isinstance(which[-1], Broker):
            which, broker = which[:-1], which[-1]
        pid, wanted = named.get("pid", which[0] if len(which) > 1 else 0), named.get("cluster_id")
        if wanted is None:
            wanted = which[-1] if which else pid
        is_pid = isinstance(wanted, int)
        for each in Stat.get_all(broker):
            if each.pid == wanted if is_pid else str(each.cluster_id) == str(wanted):
                return each
        return Status(wanted if is_pid else pid, wanted)

    @staticmethod
    def get_all(broker: Broker | None = None) -> list[Stat]:
        """Return all clusters of this broker that live, the oldest first; none while it does not answer."""
        if not broker_tells():
            return [Stat(each) for each in announced(broker or get_broker())]
        try:
            presence = app().broker.presence
            found = [] if presence is None else [as_presence(each) for each in presence.admin.workers()]
        except BrokerUnavailable:
            return []
        return [Stat(each) for each in sorted(found, key=lambda worker: worker.started) if is_ours(each)]


def broker_tells() -> bool:
    """Return whether the broker stores the state of clusters. Otherwise Django's cache has to."""
    if conf.broker == "orm" and is_in_memory(broker_alias()):
        return False
    return WORKERS not in app().broker.lacks


def can_see() -> bool:
    """Tell whether clusters of other processes can be seen at all."""
    return broker_tells() or is_shared(conf.cache)


def node_of(cluster_name: str, cluster_id: uuid.UUID, host: str) -> str:
    """Return the node name of a cluster's worker, by which it is found again. It begins with the project's
    name: several projects may have one broker."""
    return f"{conf.prefix}.{cluster_name}.{cluster_id.hex}@{host}"


def id_of(node: str) -> uuid.UUID:
    """Return the id of the cluster whose worker has the name *node*; for another worker, a stable id."""
    return _parts(node)[1] or uuid.uuid5(uuid.NAMESPACE_DNS, node)


def _parts(node: str) -> tuple[str, uuid.UUID | None]:
    """Return the names in the node name of a cluster's worker, and its id; None for the id of another
    worker."""
    names, _, text = node.rpartition("@")[0].rpartition(".")
    try:
        return names, uuid.UUID(hex=text)
    except ValueError:
        return names, None


def is_ours(worker: Presence) -> bool:
    """Tell whether *worker* may be of this project: whether it is no cluster of another one."""
    names, cluster_id = _parts(worker.name)
    return cluster_id is None or names in {f"{conf.prefix}.{queue}" for queue in worker.queues}
