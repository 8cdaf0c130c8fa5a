"""One queue of Disque, and all queues of a worker at once.

Comes from:  ``broker.py``.
Goes to:     ``nodes.py``.
Thread:      see ServerQueue; AllQueues has its own connections.

Disque queues a job again some seconds (its RETRY, set by its publisher) after it was *queued*, or last
reported as WORKING; delivery changes nothing. So a job from a long queue may have no time left, and WORKING
is sent for each batch before it is returned: one extra round trip. The answers contain the seconds. When half
of a job's time to live is over, Disque does not extend it any more; then it is replaced by a new job.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from qworker.errors import BrokerUnavailable, PublishError
from qworker.interrupts import reraise_interrupt
from qworker.transports.disque.link import Command, Refusal
from qworker.transports.disque.nodes import Answer, Cluster, refused
from qworker.transports.disque.url import Address
from qworker.transports.held.port import (
    Count,
    NewMessage,
    NotAll,
    PollSource,
    Received,
    ServerQueue,
    by_lease,
    expired_leases,
)
from qworker.transports.portions import portions

logger = logging.getLogger(__name__)

BATCH = 500
SCAN = 1000
REPLICATE_MILLISECONDS = 2000
"""How long a node may take to replicate a job."""
LONGEST_DELAY = 365 * 86400
ELSEWHERE = ("LEAVING", "NOREPL")
"""Refusals after which another node is tried."""
LATER = ("PAUSED", "MAXLEN", "NOREPL", "LEAVING")
"""Refusals that are temporary."""
FULL = "used memory >"
"""A node's error for full memory; redis-py removes the first word."""


@dataclass
class Hold:
    """A job that we hold. job: its id. node: which delivered it. until: the monotonic time at which it is
    queued again."""

    job: str
    node: Address
    until: float


class Options(NamedTuple):
    """How jobs are added. retry, ttl: seconds. replicate: how many nodes keep a job; None: Disque's default.
    maxlen: the longest that a queue may be; None for any. fastack: whether jobs are ended by FASTACK."""

    retry: int
    ttl: int
    replicate: int | None = None
    maxlen: int | None = None
    fastack: bool = False


def _way(options: Options, delay: int) -> list[str | int]:
    """Return these options for ADDJOB."""
    way: list[str | int] = ["RETRY", options.retry, "TTL", options.ttl + delay]
    if delay:
        way += ["DELAY", delay]
    if options.replicate is not None:
        way += ["REPLICATE", options.replicate]
    if options.maxlen is not None:
        way += ["MAXLEN", options.maxlen]
    return way


class DisqueQueue(ServerQueue):
    """The queue *name*. Disque creates it with its first job."""

    batch = BATCH
    longest_delay = LONGEST_DELAY
    look_seconds = 0.1  # so that other nodes send their jobs

    def __init__(self, cluster: Cluster, name: str, options: Options) -> None:
        self.name = name
        self._cluster = cluster
        self._options = options

    @property
    def retry(self) -> int:
        """The retry time of its jobs, in seconds."""
        return self._options.retry

    def send(self, entries: Sequence[NewMessage]) -> None:
        self._add([(text.encode(), *_way(self._options, delay)) for text, delay, _ in entries])

    def again(self, body: bytes) -> Command:
        """Return the command that adds a job again, to be queued after its retry time."""
        options = self._options._replace(maxlen=None)
        return ("ADDJOB", self.name, body, REPLICATE_MILLISECONDS, *_way(options, options.retry))

    def _add(self, jobs: Sequence[tuple[Any, ...]]) -> None:
        left = list(range(len(jobs)))
        nodes = len(self._cluster.addresses())
        for _ in range(nodes + 1):
            commands = [
                ("ADDJOB", self.name, body, REPLICATE_MILLISECONDS, *way)
                for body, *way in (jobs[place] for place in left)
            ]
            try:
                replies, node = self._cluster.ask(commands, again=False)
            except BrokerUnavailable as error:
                reraise_interrupt(error)
                raise NotAll(left, error) from None
            failed = [
                (place, reply)
                for place, reply in zip(left, replies, strict=True)
                if isinstance(reply, Refusal)
            ]
            if not failed:
                return
            elsewhere = [place for place, reply in failed if any(refused(reply, word) for word in ELSEWHERE)]
            refusal = failed[0][1]
            if len(elsewhere) < len(failed):
                break
            left = elsewhere
            self._cluster.leave(node)
        is_refused = not any(refused(refusal, word) for word in LATER) and FULL not in str(refusal)
        text = f"Disque refused {len(failed)} of {len(jobs)} jobs for {self.name}: {refusal}"
        if is_refused:
            raise PublishError(text)
        raise NotAll([place for place, _ in failed], BrokerUnavailable(text))

    def take(self, count: int, seconds: float) -> list[Received]:
        return received(self._cluster, {self.name.encode(): self}, count, seconds)

    # -- received messages --

    def extend(self, messages: Sequence[Received]) -> list[Received]:
        """Expired ones may belong to others by now, and are not extended."""
        now = time.monotonic()
        late = [one for one in messages if one.receipt.until < now]
        ours = [one for one in messages if one not in late]
        gone = working(self._cluster, ours)
        return [*late, *gone, *expired_leases(one for one in ours if one not in gone)]

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        now = time.monotonic()
        ours = [one for one in messages if one.receipt.until >= now]
        never = [one for one in ours if once(one.receipt.job)]  # Disque does not queue these again
        for node, ones in _by_node([one for one in ours if not once(one.receipt.job)]).items():
            self._cluster.ask([("NACK", *(one.receipt.job for one in ones))], node=node, again=False)
        if never:
            self._add_again(never)

    def _add_again(self, messages: Sequence[Received]) -> None:
        shown = self._cluster.ask([("SHOW", one.receipt.job) for one in messages]).replies
        for described in shown:
            if isinstance(described, list):
                job = fields(described)
                way = ("RETRY", 0, "REPLICATE", 1, "TTL", max(1, job["ttl"]))
                try:
                    self._add([(job["body"], *way)])
                except NotAll as refused:
                    raise refused.reason from refused.reason.__cause__
                self._cluster.ask([("FASTACK", job["id"])])

    def finish(self, messages: Sequence[Received]) -> list[Received]:
        """Disque would also end jobs that belong to others by now, so these are left out."""
        ours, gone = by_lease(messages)
        command = "FASTACK" if self._options.fastack else "ACKJOB"
        for node, ones in _by_node(ours).items():
            (known,), _ = self._cluster.ask([(command, *(one.receipt.job for one in ones))], node=node)
            accepted(known, node)
        return gone + expired_leases(ours)

    # -- administration --

    def count(self) -> Count:
        """Return what can be received, and nothing else: the rest would require reading each job, and this is
        called every few seconds. See counts()."""
        return Count(sum(answer.replies[0] for answer in every_node(self._cluster, ("QLEN", self.name))))

    def purge(self) -> int:
        ids = [
            job_id
            for job_id, copies in scanned(self._cluster, self.name).items()
            if copies[0]["waits"] or any(job["state"] == b"queued" for job in copies)
        ]
        done = 0
        for some in portions(ids, BATCH):
            done += self._cluster.ask([("ACKJOB", *some)]).replies[0]
        return done


class AllQueues(PollSource):
    """All *queues*, in one query, on its own connections."""

    name = "disque"
    batch = BATCH
    look_seconds = DisqueQueue.look_seconds

    def __init__(self, cluster: Cluster, queues: Sequence[DisqueQueue]) -> None:
        self._cluster = cluster
        self._queues = {queue.name.encode(): queue for queue in queues}

    def serves(self, queue: str) -> bool:
        return queue.encode() in self._queues

    def take(self, count: int, seconds: float) -> list[Received]:
        return received(self._cluster, self._queues, count, seconds)

    def interrupt(self) -> None:
        self._cluster.interrupt()


def received(
    cluster: Cluster, queues: dict[bytes, DisqueQueue], count: int, seconds: float
) -> list[Received]:
    """Return up to *count* jobs of *queues*; waits for the first of them."""
    way: Command = ("TIMEOUT", math.ceil(seconds * 1000)) if seconds > 0 else ("NOHANG",)
    command: Command = ("GETJOB", *way, "COUNT", count, "WITHCOUNTERS", "FROM", *queues)
    (reply,), node = cluster.ask([command], wait=seconds)
    if refused(reply, "LEAVING"):
        cluster.leave(node)
        return []
    found = [_received(queues[job[0]], job, node) for job in accepted(reply, node) or ()]
    cluster.got([one.receipt.job for one in found])
    gone = set(map(id, working(cluster, found)))  # they ended during the query
    return [one for one in found if id(one) not in gone]


def _received(queue: DisqueQueue, job: list[Any], node: Address) -> Received:
    _, job_id, body, _, nacks, _, deliveries = job
    name = job_id.decode("ascii")
    lease = math.inf if once(name) else queue.retry  # working() corrects it for other publishers' jobs
    return Received(
        queue,
        body.decode("utf-8", "surrogateescape"),
        id=name,
        receipt=Hold(name, node, time.monotonic() + lease),
        lease_seconds=lease,
        redelivered=nacks + deliveries > 0,  # not deaths: the holder may never have run it
    )


def working(cluster: Cluster, messages: Sequence[Received]) -> list[Received]:
    """Report *messages* as being worked on, in one round trip with each node; return those that no longer
    exist. Those that are too old for that are replaced."""
    gone: list[Received] = []
    old: list[Received] = []
    for node, ones in _by_node([one for one in messages if not once(one.receipt.job)]).items():
        asked = time.monotonic()
        replies, answered = cluster.ask([("WORKING", one.receipt.job) for one in ones], node=node)
        for one, reply in zip(ones, replies, strict=True):
            if isinstance(reply, int):
                one.lease_seconds = reply
                one.receipt.until = asked + reply
            elif refused(reply, "TOOLATE"):
                old.append(one)
            elif refused(reply, "NOJOB") and answered == node:
                gone.append(one)
    for node, ones in _by_node(old).items():
        _replace(cluster, node, ones)
    return gone


def _replace(cluster: Cluster, node: Address, messages: Sequence[Received]) -> None:
    """Replace each of *messages*, delivered by *node* and too old to be kept, with a new job. The new ones
    are delayed by as long as WORKING would have hidden the old ones."""
    shown, _ = cluster.ask([("SHOW", one.receipt.job) for one in messages], node=node)
    commands: list[Command] = []
    left: list[tuple[Received, int]] = []
    for one, described in zip(messages, shown, strict=True):
        queue = one.queue
        assert isinstance(queue, DisqueQueue)
        if isinstance(described, list):  # if not, the next WORKING reports it
            left.append((one, queue.retry))
            commands.append(queue.again(fields(described)["body"]))
    if not left:
        return
    asked = time.monotonic()
    replies, home = cluster.ask(commands, again=False)
    done: list[str] = []
    for (one, retry), reply in zip(left, replies, strict=True):
        if isinstance(reply, bytes):
            done.append(one.receipt.job)
            one.receipt, one.lease_seconds = Hold(reply.decode("ascii"), home, asked + retry), retry
        elif reply is not None:
            logger.warning(
                "job %s of %s is about to expire, and could not be replaced: another worker may get it in "
                "%.0f s: %s",
                *(one.receipt.job, one.queue.name, one.receipt.until - asked, reply),
            )
    if done:
        cluster.ask([("ACKJOB", *done)], node=node)


def _by_node(messages: Sequence[Received]) -> dict[Address, list[Received]]:
    found: dict[Address, list[Received]] = {}
    for one in messages:
        found.setdefault(one.receipt.node, []).append(one)
    return found


def every_node(cluster: Cluster, command: Command) -> list[Answer]:
    """Return the answers of all available nodes. Raises BrokerUnavailable when there is none, or one
    refuses."""
    answers = [cluster.ask([command])]
    for address in cluster.addresses():
        if address != answers[0].node:
            with suppress(BrokerUnavailable):
                answers.append(cluster.ask([command], node=address, only=True))
    for (reply,), node in answers:
        accepted(reply, node)
    return answers


def accepted(reply: Any, node: Address) -> Any:
    """Return *reply* of *node*. Raises BrokerUnavailable when it is a Refusal."""
    if isinstance(reply, Refusal):
        raise BrokerUnavailable(f"Disque, {node}: {reply}")
    return reply


def scanned(cluster: Cluster, queue: str | None = None) -> dict[bytes, list[dict[str, Any]]]:
    """Return the copies of each job of *queue*, or of all, on all available nodes; by id."""
    found: dict[bytes, list[dict[str, Any]]] = {}
    only: Command = () if queue is None else ("QUEUE", queue)
    for answer in every_node(cluster, ("TIME",)):
        now = int(answer.replies[0][0]) + int(answer.replies[0][1]) / 1e6
        cursor = b"0"
        while True:
            scan: Command = ("JSCAN", cursor, "COUNT", SCAN, *only, "REPLY", "all")
            (reply,), node = cluster.ask([scan], node=answer.node, only=True)
            cursor, jobs = accepted(reply, node)
            for described in jobs:
                job = fields(described)
                found.setdefault(job["id"], []).append({**job, "waits": waits(job, now)})
            if cursor == b"0":
                break
    return found


def counts(cluster: Cluster) -> dict[str, Count]:
    """Return the states of the queues with jobs, by name. Each job is read."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for copies in scanned(cluster).values():
        states = {job["state"] for job in copies}
        counter = found[copies[0]["queue"].decode("utf-8", "replace")]
        if b"queued" in states:
            counter["ready"] += 1
        elif b"active" in states:
            counter["delayed" if copies[0]["waits"] else "leased"] += 1
    return {name: Count(one["ready"], one["delayed"], one["leased"]) for name, one in found.items()}


# -- Jobs as nodes describe them --


def once(job_id: str) -> bool:
    """Whether a job is delivered at most once, and so never queued again."""
    return not int(job_id[-1], 16) & 1


def fields(described: list[Any]) -> dict[str, Any]:
    """Return the fields of SHOW and JSCAN for a job, by name."""
    return {name.decode(): value for name, value in zip(described[::2], described[1::2], strict=True)}


def waits(job: dict[str, Any], now: float) -> bool:
    """Whether an active job is delayed, and so has no consumer. now: of the node."""
    return bool(job["delay"]) and job["ctime"] / 1e9 + job["delay"] > now
