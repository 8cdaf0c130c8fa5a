"""Moving waiting messages from one broker to another, without loss.

Comes from:  ``qworker move``.
Goes to:     two brokers: leased from the one, pushed to the other, and only then acknowledged.
Thread:      the caller's.

Whenever it is interrupted, a message is in one or both brokers, never in none. At most BATCH messages can be
in both: accepted by the new broker, but not yet deleted from the old one. Workers of the new broker may have
taken them meanwhile, so the next move cannot recognise them, and they may run twice. Dead letters are not
taken by workers, so those that have already arrived are only deleted from the old broker.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from qworker.clock import to_epoch
from qworker.conf import mask_urls
from qworker.errors import (
    BrokerUnavailable,
    ConfigurationError,
    InvalidTaskMessage,
    LeaseLost,
    NotSupported,
)
from qworker.message.reading import parse_headers
from qworker.naming import hostname, task_id
from qworker.transports import SCHEMES
from qworker.transports.lease import Ack, Broker, Dead, Envelope, Leased, Letters, QueueInfo
from qworker.transports.portions import portions
from qworker.transports.sql.embedded.path import database_path

BATCH = 100
EVER = 100 * 365 * 86400.0
"""Further ahead than any due time, in seconds."""
QUIET_SECONDS = 2.0
"""A broker that cannot count its messages is considered empty after this long without one."""
ROUNDS = 3
"""After this many consecutive batches of messages moved before, both must be one broker with two names."""
HEARD_TRIES = 10
HEARD_SECONDS = 0.05
"""How often, and for how long, to wait for a message sent to the other broker."""

_PORTS = {
    "redis": 6379, "rediss": 6379, "valkey": 6379, "valkeys": 6379, "amqp": 5672, "pyamqp": 5672,
    "amqps": 5671,
    "postgresql": 5432, "postgres": 5432, "mysql": 3306, "mariadb": 3306,
}  # fmt: skip
_DATABASES = {"redis": "0", "rediss": "0", "valkey": "0", "valkeys": "0"}


class Report(NamedTuple):
    """moved and dead: how many messages and dead letters were moved. twice: how many of the messages another
    consumer took meanwhile, because this process was silent for too long: they may run twice. left: the
    states of queues that still hold anything."""

    moved: int
    dead: int
    twice: int
    left: list[QueueInfo]


def waiting(store: Broker, queues: Sequence[str] | None) -> list[QueueInfo]:
    """Return the states of the queues that hold anything; None: all of them."""
    return [info for info in store.admin.queues() if queues is None or info.queue in queues]


def same_place(one: str, other: str) -> bool:
    """Whether two broker URLs lead to the same messages; host names are compared as written."""
    return _place(one) == _place(other)


def _place(url: str) -> tuple[object, ...]:
    scheme, _, rest = url.partition("://")
    kind = SCHEMES.get(scheme, scheme)
    if kind == SCHEMES["sqlite"]:
        return kind, database_path(url).resolve()
    parts = urlsplit(f"//{rest}")
    if "," in parts.netloc:
        hosts = frozenset(parts.netloc.rpartition("@")[2].split(","))
        return kind, hosts, parts.path.strip("/") or _DATABASES.get(scheme, "")
    host = (parts.hostname or "localhost").replace("127.0.0.1", "localhost").replace("::1", "localhost")
    return kind, host, parts.port or _PORTS.get(scheme), parts.path.strip("/") or _DATABASES.get(scheme, "")


def move(
    source: Broker,
    target: Broker,
    queues: Sequence[str] | None = None,
    dead: bool = False,
    lease_seconds: float = 15.0,
    progress: Callable[[int], None] = lambda moved: None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Report:
    """Move the waiting messages of *queues* (None: all) from *source*, due or not, to *target*; *dead*: the
    dead letters too.

    Ids, headers, bodies, signatures, priorities, due times and expiry are kept; counts of deliveries restart.
    lease_seconds: how long a lease in *source* lasts, and so how long to wait for the messages of a killed
    move, if there are no workers. progress(moved) is called after every batch.

    Raises BrokerUnavailable when either broker becomes unavailable: messages not moved yet are still in
    *source*; call it again. ConfigurationError when both are the same broker. NotSupported, with nothing
    moved, when *dead* and *target* does not accept dead letters from elsewhere.
    """
    if dead:
        _dead_letters(target).push([])
    names = list(queues) if queues is not None else [info.queue for info in source.admin.queues()]
    push_seconds = min(10.0, lease_seconds / 2)  # a push ends before the lease on its messages does
    moved = twice = 0
    seen: set[int] = set()
    rounds = 0
    try:
        for generation, messages in _batches(source, target, names, lease_seconds, monotonic):
            keys = {hash(message.headers) for message in messages}
            rounds = rounds + 1 if keys <= seen else 0
            seen |= keys
            if rounds == ROUNDS:
                raise _one_place(source, target)
            target.sender.push([_envelope(message) for message in messages], push_seconds)
            twice += _acknowledge(source, generation, messages)
            moved += len(messages)
            progress(moved)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{error}; {moved} messages were moved, and at most {BATCH} are in both places; run it again for "
            "the rest"
        ) from error
    finally:
        with suppress(BrokerUnavailable, LeaseLost):  # messages go back when the lease ends
            source.consumer.deregister()
    try:
        letters = _move_dead(source, target, queues) if dead else 0
    except BrokerUnavailable as error:
        raise BrokerUnavailable(
            f"{error}; {moved} messages were moved, but not all dead letters; run it again for the rest"
        ) from error
    return Report(moved, letters, twice, waiting(source, queues))


def _one_place(source: Broker, target: Broker) -> ConfigurationError:
    return ConfigurationError(
        f"{mask_urls(source.url)} and {mask_urls(target.url)} are two names of the same broker: "
        "there is nothing to move, and nothing was lost"
    )


def _leads_back(source: Broker, target: Broker) -> bool:
    """Whether a revocation sent to *target*, for an id that no task has, arrives at *source*, where we are
    registered. False if tasks cannot be revoked."""
    sending, receiving = target.revocations, source.revocations
    if sending is None or receiving is None or type(source.sender) is not type(target.sender):
        return False
    id = f"qworker-move-{task_id()}"
    sending.sender.revoke([id])
    for _ in range(HEARD_TRIES):
        if any(revocation.task_id == id for revocation in receiving.consumer.revoked_since(0)[1]):
            return True
        source.consumer.wait(HEARD_SECONDS)
    return False


def _batches(
    source: Broker,
    target: Broker,
    names: list[str],
    lease_seconds: float,
    monotonic: Callable[[], float],
) -> Iterator[tuple[int, list[Leased]]]:
    """Yield leased messages, with the generation of the lease, until there are no more."""
    if not names:
        return
    name = f"move-{os.getpid()}@{hostname()}"
    worked_on = source.presence is not None and bool(source.presence.admin.workers())
    generation = source.consumer.register(name, names, 0)
    try:
        leads_back = _leads_back(source, target)
    except LeaseLost:
        generation = source.consumer.register(name, names, 0)
        leads_back = _leads_back(source, target)
    if leads_back:
        raise _one_place(source, target)
    last = monotonic()
    while True:
        try:
            source.consumer.reclaim()
            messages = (
                source.consumer.lease(names, BATCH).messages
                or source.consumer.lease(names, 0, delayed_limit=BATCH, eta_window=EVER).messages
            )
        except LeaseLost:
            generation = source.consumer.register(name, names, 0)
            continue
        if messages:
            yield generation, messages
            last = monotonic()
        elif monotonic() - last > _timeout(source, names, lease_seconds, worked_on):
            return
        else:
            with suppress(LeaseLost):  # the next claim will raise it
                source.consumer.wait(0.1)


def _acknowledge(source: Broker, generation: int, messages: Sequence[Leased]) -> int:
    """Delete *messages* from *source*; return how many were no longer ours."""
    try:
        return len(source.consumer.settle(generation, [Ack(message.tag) for message in messages]))
    except LeaseLost:
        return len(messages)


def _timeout(source: Broker, names: list[str], lease_seconds: float, worked_on: bool) -> float:
    """Return how many seconds without a message mean that no more will come."""
    if "counts" in source.lacks:
        return QUIET_SECONDS
    infos = waiting(source, names)
    if any(info.ready or info.delayed for info in infos):
        return QUIET_SECONDS
    if any(info.leased for info in infos) and not worked_on:
        return lease_seconds + QUIET_SECONDS
    return -1.0


def _envelope(message: Leased) -> Envelope:
    return Envelope(
        message.queue,
        message.headers,
        message.properties,
        message.body,
        message.priority,
        message.due,
        _expires(message.headers),
    )


def _expires(headers: str) -> float | None:
    """Return the epoch second when the message expires; None for never, or if unreadable: a worker will
    report that."""
    try:
        expires = parse_headers(headers)["expires"]
    except InvalidTaskMessage:
        return None
    return None if expires is None else to_epoch(expires)


def _move_dead(source: Broker, target: Broker, queues: Sequence[str] | None) -> int:
    """Move dead letters, oldest first, so that the newest are the newest there, too; return their number.
    Those that arrived in an interrupted move are not sent again."""
    letters = _dead(source, queues)
    arrived = Counter(_key(letter) for letter in _dead(target, queues)) if letters else Counter()
    letters.sort(key=lambda letter: (letter.died_at, letter.tag))
    for batch in portions(letters, BATCH):
        missing = []
        for letter in batch:
            key = _key(letter)
            if arrived[key]:
                arrived[key] -= 1
            else:
                missing.append(letter)
        _dead_letters(target).push(missing)
        _dead_letters(source).discard([letter.tag for letter in batch])
    return len(letters)


def _dead_letters(broker: Broker) -> Letters:
    letters = broker.letters.get("dead")
    if letters is None:
        raise NotSupported("this broker keeps no dead letters")
    return letters


def _dead(broker: Broker, queues: Sequence[str] | None) -> list[Dead]:
    chosen: Sequence[str | None] = [None] if queues is None else list(dict.fromkeys(queues))
    letters = broker.letters.get("dead")
    return [] if letters is None else [each for queue in chosen for each in letters.newest(queue)]


def _key(letter: Dead) -> Hashable:
    """Return what identifies a dead letter in any broker. Some shorten its reason, and some rewrite its
    headers and properties."""
    try:
        id = parse_headers(letter.headers)["id"]
    except InvalidTaskMessage:
        id = letter.headers
    return letter.queue, letter.died_at, id, hash(letter.body)
