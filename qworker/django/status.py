"""Status: the state of a project's clusters, with Django-Q's interface.

Comes from:  monitors, the commands, and programs.
Goes to:     the presence that each worker publishes through its broker or, if the broker cannot store it,
             through Django's cache.
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
    """The state of a cluster. A new one describes a cluster that has stopped.

    - pid, host: of its main process. cluster_id: its id.
    - tob (datetime): when it started. timestamp (datetime): when this report was made.
    - status (text): Starting, Idle, Working, Stopping or Stopped.
    - name (text): its node name.
    - workers: the ids of its worker processes. reincarnations: how many of them were replaced.
    - task_q_size: tasks that wait in it. done_q_size: results not yet reported to the broker.
    - sentinel, pusher, monitor: the id of the main process, which is all three; 0 for none.
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
        """Return itself: ``stat`` is a method in the manual, and an attribute in later versions."""
        return self

    def uptime(self) -> float:
        """Return how many seconds it has run."""
        return 0.0 if self.tob is None else (datetime.now(UTC) - self.tob) / timedelta(seconds=1)

    def empty_queues(self) -> bool:
        """Return whether nothing waits in it."""
        return self.task_q_size + self.done_q_size == 0


class Stat(Status):
    """A live cluster."""

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
        """Return a cluster: ``get(cluster_id)`` or ``get(pid, cluster_id)``, also as keywords. The id may be
        a UUID, its text, or a process id. A cluster that is not found has the status Stopped."""
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
        """Return this broker's live clusters, oldest first; [] if it does not answer."""
        if not broker_stores_state():
            return [Stat(each) for each in announced(broker or get_broker())]
        try:
            presence = app().broker.presence
            found = [] if presence is None else [as_presence(each) for each in presence.admin.workers()]
        except BrokerUnavailable:
            return []
        return [Stat(each) for each in sorted(found, key=lambda worker: worker.started) if is_ours(each)]


def broker_stores_state() -> bool:
    """Return whether the broker stores the state of clusters; if not, Django's cache is used."""
    if conf.broker == "orm" and is_in_memory(broker_alias()):
        return False
    return WORKERS not in app().broker.lacks


def can_see() -> bool:
    """Return whether clusters in other processes can be seen at all."""
    return broker_stores_state() or is_shared(conf.cache)


def node_of(cluster_name: str, cluster_id: uuid.UUID, host: str) -> str:
    """Return the node name of a cluster's worker. It begins with the project's name, since projects may share
    a broker."""
    return f"{conf.prefix}.{cluster_name}.{cluster_id.hex}@{host}"


def id_of(node: str) -> uuid.UUID:
    """Return the cluster id in the worker name *node*; for other names, a stable id made from it."""
    return _parts(node)[1] or uuid.uuid5(uuid.NAMESPACE_DNS, node)


def _parts(node: str) -> tuple[str, uuid.UUID | None]:
    """Split the node name of a cluster's worker into its names and the cluster id, which is None for other
    workers."""
    names, _, text = node.rpartition("@")[0].rpartition(".")
    try:
        return names, uuid.UUID(hex=text)
    except ValueError:
        return names, None


def is_ours(worker: Presence) -> bool:
    """Return False if *worker* is a cluster of another project."""
    names, cluster_id = _parts(worker.name)
    return cluster_id is None or names in {f"{conf.prefix}.{queue}" for queue in worker.queues}
