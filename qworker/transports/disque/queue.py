"""One queue of Disque, and all queues of a worker at once.

Comes from:  ``server.py``.
Goes to:     ``nodes.py``.
Thread:      see RemoteQueue; AllQueues has connections of its own.

Disque hides a job for the seconds that its publisher said (RETRY), from when it was given out or last said to
be WORKING on. Half its time to live after its beginning it cannot be hidden for longer.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from qworker.errors import BrokerUnavailable, PublishError
from qworker.transports.disque.job import Hold, fields, once, retry_of, waits, with_retry
from qworker.transports.disque.link import Command, Refusal
from qworker.transports.disque.nodes import Answer, Cluster, refused
from qworker.transports.disque.url import Address
from qworker.transports.kombu.messages import Outgoing
from qworker.transports.visibility.queue import Count, Entry, Received, RemoteQueue, Source

logger = logging.getLogger(__name__)

BATCH = 500
SCAN = 1000
REPLICATE_MILLISECONDS = 2000
"""How long a node may take to have others keep copies."""
LONGEST_DELAY = 365 * 86400
ELSEWHERE = ("LEAVING", "NOREPL")
"""Refusals after which another node is asked."""
LATER = ("PAUSED", "MAXLEN", "NOREPL", "LEAVING")
"""Refusals that end."""
FULL = "used memory >"
"""What a node without memory says, by redis-py, which takes the first word away."""


class Options(NamedTuple):
    """How jobs are added. retry, ttl: seconds. replicate: how many nodes keep a job; None: as Disque does.
    maxlen: the longest that a queue may be; None for any. fastack: whether jobs are ended by FASTACK."""

    retry: int
    ttl: int
    replicate: int | None = None
    maxlen: int | None = None
    fastack: bool = False


class DisqueQueue(RemoteQueue):
    """The queue *name*. Disque makes it with its first job."""

    batch = BATCH
    longest_delay = LONGEST_DELAY
    look_seconds = 0.1  # so that other nodes send what they have

    def __init__(self, cluster: Cluster, name: str, options: Options) -> None:
        self.name = name
        self._cluster = cluster
        self._options = options

    def text(self, message: Outgoing) -> str:
        return with_retry(super().text(message), self._options.retry)

    def send(self, entries: Sequence[Entry]) -> None:
        self._add([(text.encode(), *self._way(delay)) for text, delay in entries])

    def _way(self, delay: int) -> list[str | int]:
        options = self._options
        way: list[str | int] = ["RETRY", options.retry, "TTL", options.ttl + delay]
        if delay:
            way += ["DELAY", delay]
        if options.replicate is not None:
            way += ["REPLICATE", options.replicate]
        if options.maxlen is not None:
            way += ["MAXLEN", options.maxlen]
        return way

    def _add(self, jobs: Sequence[tuple[Any, ...]]) -> None:
        left = list(jobs)
        nodes = len(self._cluster.addresses())
        for _ in range(nodes + 1):
            commands = [("ADDJOB", self.name, body, REPLICATE_MILLISECONDS, *way) for body, *way in left]
            replies, node = self._cluster.ask(commands, again=False)
            failed = [
                (job, reply) for job, reply in zip(left, replies, strict=True) if isinstance(reply, Refusal)
            ]
            if not failed:
                return
            elsewhere = [job for job, reply in failed if any(refused(reply, word) for word in ELSEWHERE)]
            refusal = failed[0][1]
            if len(elsewhere) < len(failed):
                break
            left = elsewhere
            self._cluster.leave(node)
        unfit = not any(refused(refusal, word) for word in LATER) and FULL not in str(refusal)
        raise (PublishError if unfit else BrokerUnavailable)(
            f"Disque took {len(failed)} of {len(jobs)} jobs for {self.name} not: {refusal}"
        )

    def receive(self, count: int, seconds: float) -> list[Received]:
        return received(self._cluster, {self.name.encode(): self}, count, seconds)

    # -- what was received --

    def _ask_of(self, messages: Sequence[Received], command: str) -> list[tuple[Received, Any, bool]]:
        """What was replied for each message, and whether by the node that gave it."""
        found: list[tuple[Received, Any, bool]] = []
        for node, ones in _by_node(messages).items():
            replies, answered = self._cluster.ask([(command, one.delivery_tag) for one in ones], node=node)
            found += [(one, reply, answered == node) for one, reply in zip(ones, replies, strict=True)]
        return found

    def renew(self, messages: Sequence[Received]) -> list[Received]:
        """Those whose time is over, others may have by now, and so are not asked for."""
        now = time.monotonic()
        gone = [one for one in messages if one.receipt.until < now]
        late = set(map(id, gone))
        for one, reply, by_giver in self._ask_of([one for one in messages if id(one) not in late], "WORKING"):
            hold: Hold = one.receipt
            if isinstance(reply, int):
                one.lease_seconds = reply
                hold.until = now + reply
            elif refused(reply, "TOOLATE") and not hold.warned:
                hold.warned = True
                logger.warning("job %s of %s has lived for half its time and cannot be kept for longer: "
                               "it may be given to another worker in %.0f s (raise ttl in "
                               "broker_transport_options)", one.delivery_tag, self.name,
                               hold.until - now)  # fmt: skip
            elif refused(reply, "NOJOB") and by_giver:
                gone.append(one)
        return gone

    def give_back(self, messages: Sequence[Received], delay: int = 0) -> None:
        now = time.monotonic()
        ours = [one for one in messages if one.receipt.until >= now]
        never = [one for one in ours if once(one.delivery_tag)]  # Disque does not queue these again
        for node, ones in _by_node([one for one in ours if not once(one.delivery_tag)]).items():
            self._cluster.ask([("NACK", *(one.delivery_tag for one in ones))], node=node)
        if never:
            self._anew(never)

    def _anew(self, messages: Sequence[Received]) -> None:
        shown = self._cluster.ask([("SHOW", one.delivery_tag) for one in messages]).replies
        for told in shown:
            if isinstance(told, list):
                job = fields(told)
                way = ("RETRY", 0, "REPLICATE", 1, "TTL", max(1, job["ttl"]))
                self._add([(job["body"], *way)])
                self._cluster.ask([("FASTACK", job["id"])])

    def delete(self, messages: Sequence[Received]) -> list[Received]:
        now = time.monotonic()
        gone: list[Received] = []
        command = "FASTACK" if self._options.fastack else "ACKJOB"
        for node, ones in _by_node(messages).items():
            (known,), _ = self._cluster.ask([(command, *(one.delivery_tag for one in ones))], node=node)
            if isinstance(known, Refusal):
                raise BrokerUnavailable(f"Disque, {node}: {known}")
            gone += [one for one in ones if one.receipt.until < now][: len(ones) - known]
        return gone

    # -- administration --

    def _scanned(self, *options: str) -> dict[bytes, list[dict[str, Any]]]:
        """The copies of each job of this queue, on all nodes that answer; by id."""
        found: dict[bytes, list[dict[str, Any]]] = {}
        for answer in every_node(self._cluster, ("TIME",)):
            now = int(answer.replies[0][0]) + int(answer.replies[0][1]) / 1e6
            cursor = b"0"
            while True:
                scan: Command = (
                    *("JSCAN", cursor, "COUNT", SCAN, "QUEUE", self.name),
                    *(*options, "REPLY", "all"),
                )
                ((cursor, jobs),), _ = self._cluster.ask([scan], node=answer.node, only=True)
                for told in jobs:
                    job = fields(told)
                    found.setdefault(job["id"], []).append({**job, "waits": waits(job, now)})
                if cursor == b"0":
                    break
        return found

    def count(self) -> Count:
        ready = delayed = leased = 0
        for copies in self._scanned().values():
            states = {job["state"] for job in copies}
            if b"queued" in states:
                ready += 1
            elif b"active" in states:
                waiting = copies[0]["waits"]
                delayed += waiting
                leased += not waiting
        return Count(ready, delayed, leased)

    def purge(self) -> int:
        ids = [
            job_id
            for job_id, copies in self._scanned().items()
            if copies[0]["waits"] or any(job["state"] == b"queued" for job in copies)
        ]
        done = 0
        for start in range(0, len(ids), BATCH):
            done += self._cluster.ask([("ACKJOB", *ids[start : start + BATCH])]).replies[0]
        return done


class AllQueues(Source):
    """All *queues*, in one question, on connections of its own."""

    name = "disque"
    batch = BATCH

    def __init__(self, cluster: Cluster, queues: Sequence[DisqueQueue]) -> None:
        self._cluster = cluster
        self._queues = {queue.name.encode(): queue for queue in queues}

    def receive(self, count: int, seconds: float) -> list[Received]:
        return received(self._cluster, self._queues, count, seconds)

    def interrupt(self) -> None:
        self._cluster.interrupt()


def received(
    cluster: Cluster, queues: dict[bytes, DisqueQueue], count: int, seconds: float
) -> list[Received]:
    """Up to *count* jobs of *queues*; waits for the first of them."""
    way: Command = ("TIMEOUT", math.ceil(seconds * 1000)) if seconds > 0 else ("NOHANG",)
    command: Command = ("GETJOB", *way, "COUNT", count, "WITHCOUNTERS", "FROM", *queues)
    (reply,), node = cluster.ask([command], wait=seconds)
    if refused(reply, "LEAVING"):
        cluster.leave(node)
        return []
    if isinstance(reply, Refusal):
        raise BrokerUnavailable(f"Disque, {node}: {reply}")
    found = [_received(queues[job[0]], job, node) for job in reply or ()]
    cluster.got([one.delivery_tag for one in found])
    return found


def _received(queue: DisqueQueue, job: list[Any], node: Address) -> Received:
    _, job_id, body, _, nacks, _, deliveries = job
    name = job_id.decode("ascii")
    retry: float | None = math.inf if once(name) else retry_of(body)
    return Received(
        queue,
        body.decode("utf-8", "surrogateescape"),
        id=name,
        receipt=Hold(node, time.monotonic() + (math.inf if retry is None else retry)),
        lease_seconds=retry or 0.0,  # of a stranger's it is not known, until it is renewed at once
        redelivered=nacks + deliveries > 0,
        deaths=deliveries,
    )


def _by_node(messages: Sequence[Received]) -> dict[Address, list[Received]]:
    found: dict[Address, list[Received]] = {}
    for one in messages:
        found.setdefault(one.receipt.node, []).append(one)
    return found


def every_node(cluster: Cluster, command: tuple[str, ...]) -> list[Answer]:
    """The answers of all nodes that are there. Raises BrokerUnavailable when none is."""
    answers = [cluster.ask([command])]
    for address in cluster.addresses():
        if address != answers[0].node:
            try:
                answers.append(cluster.ask([command], node=address, only=True))
            except BrokerUnavailable:
                continue
    return answers
