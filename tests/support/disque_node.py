"""Disque nodes as in the transcripts in tests/data/disque: jobs, queues, replicas and errors.

Comes from:  ``disque_server.py``, which has the sockets; tests that move the clock.
Goes to:     replies, which encoded() turns into bytes.
Thread:      one for all nodes of a cluster.
"""

from __future__ import annotations

import json
import os
import random
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
IMPORTED = 100
"""How many jobs another node sends at a time."""
COMMANDS = 32
RANDOM = random.SystemRandom()
"""Not the global generator: hypothesis seeds it for each example, so ids would repeat."""


class Simple(str):
    """A one-line reply."""


class Refusal(Exception):
    """An error, which is a reply, too."""


class NilArray:
    """A null array."""


NIL_ARRAY = NilArray()


class Blocked(NamedTuple):
    """A client that waits for jobs. deadline: 0 for none."""

    session: Session
    queues: list[bytes]
    deadline: float
    counters: bool


@dataclass(eq=False)
class Session:
    """The state of a connection."""

    allowed: bool
    name: bytes = b""
    blocked: Blocked | None = None


@dataclass(eq=False)
class Job:
    """A node's copy of a job; times in seconds. requeue_at: when it is queued again; 0 for never."""

    id: str
    queue: bytes
    body: bytes
    repl: int
    ctime: int
    expires: float
    delay: int
    retry: int
    ttl: int
    requeue_at: float
    holders: list[str]
    state: str = "active"
    nacks: int = 0
    deliveries: int = 0
    delivered: bool = False

    @property
    def place(self) -> tuple[int, str]:
        return self.ctime, self.id


@dataclass
class Queue:
    """A queue of a node: (ctime, id) of the available jobs, oldest first."""

    made: float
    used: float
    jobs: list[tuple[int, str]] = field(default_factory=list)
    jobs_in: int = 0
    jobs_out: int = 0
    pause: frozenset[str] = frozenset()


class Cluster:
    """clock: seconds since the epoch. All nodes that are up know of each other."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.nodes: list[Node] = []

    def step(self) -> None:
        for node in self.nodes:
            node.step()


class Node:
    """A node of *cluster*, on *port*. aof: the file that keeps its jobs over a restart."""

    def __init__(
        self, cluster: Cluster, port: int, password: str | None = None, aof: Path | None = None
    ) -> None:
        self.cluster = cluster
        self.port = port
        self.password = password
        self.aof = aof
        self.id = os.urandom(20).hex()
        self.up = True
        self.leaving = False
        self.met: set[str] = set()
        self.calls: Counter[str] = Counter()
        """How often each command was received."""
        self.commands: Counter[str] = Counter()
        self._last_ctime = 0
        cluster.nodes.append(self)
        self.forget()
        if aof is not None:
            self._load(aof)

    def forget(self) -> None:
        """Delete everything."""
        self.jobs: dict[str, Job] = {}
        self.queues: dict[bytes, Queue] = {}
        self.blocked: list[Blocked] = []
        self._timers: list[tuple[float, str]] = []

    def session(self) -> Session:
        return Session(allowed=self.password is None)

    @property
    def others(self) -> list[Node]:
        """The other nodes that are up."""
        return [node for node in self.cluster.nodes if node is not self and node.up and node.id in self.met]

    def copies(self, job_id: str) -> Iterator[tuple[Node, Job]]:
        for node in self.others:
            if job_id in node.jobs:
                yield node, node.jobs[job_id]

    # -- the file --

    def _note(self, **line: Any) -> None:
        if self.aof is not None:
            with self.aof.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _keep(self, job: Job) -> None:
        values = {**vars(job), "queue": job.queue.decode("latin-1"), "body": job.body.decode("latin-1")}
        self._note(**values)

    def _load(self, aof: Path) -> None:
        for text in aof.read_text().splitlines() if aof.exists() else ():
            line = json.loads(text)
            if "node" in line:
                self.id = line["node"]
            elif "gone" in line:
                self.jobs.pop(line["gone"], None)
            else:
                line |= {name: line[name].encode("latin-1") for name in ("queue", "body")}
                self.jobs[line["id"]] = Job(**{**line, "state": "active"})
        aof.write_text("")
        self._note(node=self.id)
        for job in self.jobs.values():
            self._keep(job)
            self.wait_for(job)

    # -- jobs --

    def wait_for(self, job: Job) -> None:
        if job.requeue_at:
            heappush(self._timers, (job.requeue_at, job.id))
        heappush(self._timers, (job.expires, job.id))

    def _queue(self, name: bytes) -> Queue:
        now = self.cluster.clock()
        return self.queues.setdefault(name, Queue(now, now))

    def enqueue(self, job: Job, nack: bool = False) -> bool:
        """Queue *job*, unless it is queued or never to be."""
        if job.state != "active" or not job.requeue_at:
            return False
        now = self.cluster.clock()
        if job.delivered:
            job.nacks += nack
            job.deliveries += not nack
            for _, copy in self.copies(job.id):
                copy.nacks, copy.deliveries, copy.delivered = job.nacks, job.deliveries, True
        self.postpone(job)
        for node, copy in self.copies(job.id):
            if copy.state == "active":
                node.postpone(copy)
        job.state = "queued"
        queue = self._queue(job.queue)
        insort(queue.jobs, job.place)
        queue.jobs_in += 1
        queue.used = now
        return True

    def postpone(self, job: Job) -> None:
        job.requeue_at = self.cluster.clock() + job.retry + random.uniform(0, 0.05) if job.retry else 0
        if job.requeue_at:
            heappush(self._timers, (job.requeue_at, job.id))

    def dequeue(self, job: Job) -> bool:
        if job.state != "queued":
            return False
        jobs = self.queues[job.queue].jobs
        del jobs[bisect_left(jobs, job.place)]
        job.state = "active"
        return True

    def drop(self, job_id: str) -> bool:
        """Delete that job."""
        job = self.jobs.get(job_id)
        if job is None:
            return False
        self.dequeue(job)
        del self.jobs[job_id]
        self._note(gone=job_id)
        return True

    def step(self) -> None:
        """Process everything that is due."""
        now = self.cluster.clock()
        while self.up and self._timers and self._timers[0][0] <= now:
            job = self.jobs.get(heappop(self._timers)[1])
            if job is None:
                continue
            if job.expires <= now:
                self.drop(job.id)
            elif job.state == "acked":
                self._collect(job)
            elif job.state == "active" and 0 < job.requeue_at <= now:
                if any(copy.state == "queued" for _, copy in self.copies(job.id)):
                    self.postpone(job)
                else:
                    self.enqueue(job)
            elif job.state == "queued" and 0 < job.requeue_at <= now:
                self.postpone(
                    job
                )  # it is due again one retry interval later, no matter which client gets it meanwhile

    def _collect(self, job: Job) -> None:
        """Tell the other nodes that *job* is acknowledged; delete it when all have confirmed."""
        for node in self.others:
            node.drop(job.id)
        heard = {self.id, *(node.id for node in self.others)}
        if heard.issuperset(job.holders):
            self.drop(job.id)
        else:
            heappush(self._timers, (self.cluster.clock() + 0.2, job.id))

    def import_jobs(self, name: bytes) -> None:
        """Get jobs of queue *name* from the other nodes."""
        for node in self.others:
            queue = node.queues.get(name)
            if queue is None or "out" in queue.pause:
                continue
            for _, job_id in queue.jobs[:IMPORTED]:
                theirs = node.jobs[job_id]
                node.dequeue(theirs)
                theirs.holders = list(dict.fromkeys([*theirs.holders, self.id]))
                mine = self.jobs.get(job_id)
                if mine is None:
                    mine = self.jobs[job_id] = Job(**vars(theirs))
                    self._keep(mine)
                    self.wait_for(mine)
                if mine.state == "active":
                    if mine.retry:
                        self.postpone(mine)
                    mine.state = "queued"
                    here = self._queue(name)
                    insort(here.jobs, mine.place)
                    here.jobs_in += 1

    def fetch(self, name: bytes) -> Job | None:
        """Take the oldest job of a queue."""
        queue = self.queues.get(name)
        if queue is None or not queue.jobs or "out" in queue.pause:
            return None
        job = self.jobs[queue.jobs.pop(0)[1]]
        job.state = "active"
        job.delivered = True
        queue.jobs_out += 1
        queue.used = self.cluster.clock()
        return job

    def served(self) -> Iterator[tuple[Session, Any]]:
        """The clients that stop waiting, and their replies."""
        now = self.cluster.clock()
        for waiting in list(self.blocked):
            if waiting.session.blocked is not waiting:
                continue  # the client has disconnected meanwhile
            for name in waiting.queues:
                job = self.fetch(name)
                if job is None:
                    self.import_jobs(name)
                    job = self.fetch(name)
                if job is not None:
                    reply: Any = [given(job, waiting.counters)]
                    break
            else:
                if not waiting.deadline or waiting.deadline > now:
                    continue
                reply = NIL_ARRAY
            self.unblock(waiting.session)
            yield waiting.session, reply

    def unblock(self, session: Session) -> None:
        if session.blocked is not None:
            self.blocked.remove(session.blocked)
            session.blocked = None

    def next_ctime(self) -> int:
        self._last_ctime = max(self._last_ctime + 1, int(self.cluster.clock() * 1000) * 10**6)
        return self._last_ctime


def given(job: Job, counters: bool) -> list[Any]:
    """*job* as in the reply of GETJOB."""
    counted = [b"nacks", job.nacks, b"additional-deliveries", job.deliveries] if counters else []
    return [job.queue, job.id.encode(), job.body, *counted]


def new_id(node: Node, ttl: int, retry: int) -> str:
    """A job's id, whose last digits are its time to live in minutes, odd if it may be delivered again."""
    minutes = min(ttl // 60, 65535)
    text = "".join(RANDOM.choices(ALPHABET, k=24))
    return f"D-{node.id[:8]}-{text}-{minutes | 1 if retry else minutes & ~1:04x}"


def encoded(reply: Any) -> bytes:
    """*reply* as it goes over the wire."""
    if isinstance(reply, Simple):
        return f"+{reply}\r\n".encode("latin-1")
    if isinstance(reply, Refusal):
        return f"-{reply}\r\n".encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if reply is NIL_ARRAY:
        return b"*-1\r\n"
    if isinstance(reply, list):
        return b"*%d\r\n%b" % (len(reply), b"".join(map(encoded, reply)))
    data = reply.encode("latin-1") if isinstance(reply, str) else reply
    return b"$%d\r\n%b\r\n" % (len(data), data)
