"""Exchanges: which queues get a published message, stored in the broker's registry.

Comes from:  ``channel.py``, which declares queues and looks up destinations; ``consumer_thread.py``, which
             keeps our entries alive.
Goes to:     ``Broker.registry``; without one, only the declarations of this connection are known.
Thread:      any.

A temporary queue (for events or replies) expires with its bindings unless its user keeps it alive. The next
cleanup deletes the messages left in it. An auto-delete queue stays until its first consumer, so that earlier
messages are not lost.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from qworker.transports.registry import LocalRegistry, Registry

Binding = tuple[str, str, str]
"""``(routing_key, pattern, queue)``: a row of kombu's exchange table."""

EVERYTHING = ".*"
"""The pattern of fanout bindings."""
KNOWN_SECONDS = 1.0
"""Seconds for which the contents of the registry are cached, unless this connection changes them."""
LIFE_SECONDS = 120.0
"""Lifetime of a queue that is not kept alive. Clocks of machines may differ by half of it."""
RENEW_SECONDS = 30.0
FOREVER = ""
"""The owner of permanent entries."""
UNUSED = "-"
"""The owner of entries that wait for their first consumer."""
UNUSED_SECONDS = 10 * 365 * 86400.0
"""The default lifetime, in seconds, of entries of UNUSED."""


class _View(NamedTuple):
    """The contents of the registry. queues: when each expires. tables: valid ones by exchange."""

    queues: dict[str, float | None]
    tables: dict[str, list[Binding]]


class Exchanges:
    """registry: None if the broker has none. clock: epoch seconds."""

    def __init__(self, registry: Registry | None, clock: Callable[[], float] = time.time) -> None:
        self.shared = registry is not None
        """Whether others see our declarations."""
        self._registry = registry or LocalRegistry()
        self._clock = clock
        self._name = uuid.uuid4().hex
        """The owner of this connection's entries, which are deleted when it closes."""
        self._lock = threading.Lock()
        self._ours: dict[str, set[str]] = {}  # under _lock
        """Queues that are deleted when this connection closes, and their entries."""
        self._unused: dict[str, tuple[float, set[str]]] = {}  # under _lock
        """Auto-delete queues that have no consumer here yet: their lifetime and entries."""
        self._until_left: set[str] = set()  # under _lock
        """Queues that are deleted with their last consumer."""
        self._view = _View({}, {})  # replaced as a whole
        self._believed_until = 0.0

    def after_fork(self) -> None:
        """In a forked child: temporary queues belong to the parent."""
        self._lock = threading.Lock()  # the thread that held it does not exist here
        self._name = uuid.uuid4().hex
        self._ours = {}
        self._unused = {}

    # -- queues --

    def declare(self, queue: str, temporary: bool) -> None:
        """Declare *queue*. temporary: it is deleted when this connection closes, unless others use it,
        too."""
        if temporary:
            entry = _entry("queue", queue, self._name)
            with self._lock:
                self._ours.setdefault(queue, {entry})
            self._put([entry], temporary)
        elif self._read().queues.get(queue, 0.0) is not None:
            self._put([_entry("queue", queue, FOREVER)], temporary)

    def declare_until_left(self, queue: str, seconds: float | None, exclusive: bool) -> None:
        """Declare an auto-delete *queue*. Until its first consumer it stays, but at most *seconds* (None:
        without limit). exclusive: it is also deleted when this connection closes."""
        with self._lock:
            self._until_left.add(queue)
        if exclusive:
            self.declare(queue, temporary=True)
            return
        entry = _entry("queue", queue, UNUSED)
        known = queue in self._fresh().queues
        with self._lock:
            if queue in self._ours:
                return
            known = known and queue not in self._unused
            life = max(LIFE_SECONDS, UNUSED_SECONDS if seconds is None else seconds)
            self._unused[queue] = (life, {entry})
        if not known:
            self._put_for([entry], life)

    def consume(self, queue: str) -> None:
        """Record that this connection consumes *queue*: if it is an auto-delete queue, it is deleted when the
        connection closes."""
        with self._lock:
            _, known = self._unused.pop(queue, (0.0, set()))
        if not known:
            return
        waiting = {entry for entry in self._registry.entries() if _is_unused(entry, queue)}
        ours = {_entry(*_parsed(entry)[:-1], self._name) for entry in waiting | known}
        with self._lock:
            self._ours[queue] = ours
        self._put(list(ours), temporary=True)
        self._registry.drop(waiting)

    def goes_when_left(self, queue: str) -> bool:
        """Whether *queue* is deleted with its last consumer."""
        with self._lock:
            return queue in self._until_left

    def ours(self) -> list[str]:
        """Return the queues that are deleted when this connection closes."""
        with self._lock:
            return list(self._ours)

    def has(self, queue: str) -> bool:
        """Whether *queue* was declared."""
        return queue in self._fresh().queues

    def forget(self, queue: str) -> None:
        """Delete *queue* with its bindings. Others may send to it for a moment because of caching, so its
        contents are deleted again when it expires shortly after."""
        with self._lock:
            self._ours.pop(queue, None)
            self._unused.pop(queue, None)
            self._until_left.discard(queue)
        self._registry.drop(entry for entry in self._registry.entries() if _queue_of(entry) == queue)
        self._registry.put({_entry("gone", queue, FOREVER): self._clock() + 2 * KNOWN_SECONDS})
        self._believed_until = 0.0

    def leave(self, queue: str) -> bool:
        """Stop using the temporary *queue*; return whether nobody else uses it."""
        with self._lock:
            entries = self._ours.pop(queue, set())
        self._registry.drop(entries)
        return queue not in self._fresh().queues

    # -- bindings --

    def bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        """Bind *queue* to *exchange* with *routing_key*."""
        with self._lock:
            temporary = queue in self._ours
            life, waiting = self._unused.get(queue, (None, set()))
            owner = self._name if temporary else UNUSED if waiting else FOREVER
            entry = _entry("binding", exchange, routing_key, pattern, queue, owner)
            if temporary:
                self._ours[queue].add(entry)
            elif waiting:
                waiting.add(entry)
        if temporary or (routing_key, pattern, queue) not in self.table(exchange):
            self._put([entry], temporary) if life is None else self._put_for([entry], life)

    def unbind(self, exchange: str, routing_key: str | None = None, queue: str | None = None) -> None:
        """Remove bindings of *exchange*; None: any routing key or queue."""
        gone = set()
        for entry in self._registry.entries():
            kind, *rest = _parsed(entry)
            matches = kind == "binding" and rest[0] == exchange
            if matches and routing_key in (None, rest[1]) and queue in (None, rest[3]):
                gone.add(entry)
        with self._lock:
            for entries in (*self._ours.values(), *(waiting for _, waiting in self._unused.values())):
                entries -= gone
        self._registry.drop(gone)
        self._believed_until = 0.0

    def table(self, exchange: str) -> list[Binding]:
        """Return the bindings of *exchange*; [] if there are none."""
        return self._read().tables.get(exchange, [])

    def table_now(self, exchange: str) -> list[Binding]:
        """The same, without the cache."""
        return self._fresh().tables.get(exchange, [])

    # -- now and then --

    def has_ours(self) -> bool:
        """Whether there is anything to keep alive."""
        with self._lock:
            return bool(self._ours)

    def renew(self) -> None:
        """Keep our entries alive."""
        with self._lock:
            entries = [entry for each in self._ours.values() for entry in each]
        if entries:
            self._put(entries, temporary=True)

    def tidy(self, purge: Callable[[str], object]) -> list[str]:
        """Call *purge* for expired queues, and delete them; return which these were."""
        now, found = self._clock(), self._registry.entries()
        expired = {entry for entry, expires in found.items() if expires is not None and expires <= now}
        wanted = {_queue_of(entry) for entry in found.keys() - expired if _parsed(entry)[0] != "gone"}
        with self._lock:
            wanted |= self._ours.keys()
        queues = sorted({_queue_of(entry) for entry in expired} - wanted - {""})
        for queue in queues:
            purge(queue)
        self._registry.drop(expired)
        return queues

    def _put(self, entries: Sequence[str], temporary: bool) -> None:
        self._put_for(entries, LIFE_SECONDS if temporary and self.shared else None)

    def _put_for(self, entries: Sequence[str], seconds: float | None) -> None:
        expires = None if seconds is None else self._clock() + seconds
        self._registry.put(dict.fromkeys(entries, expires))
        self._believed_until = 0.0

    def _read(self) -> _View:
        return self._view if time.monotonic() < self._believed_until else self._fresh()

    def _fresh(self) -> _View:
        until = time.monotonic() + KNOWN_SECONDS
        self._view = _view(self._registry.entries(), self._clock())
        self._believed_until = until
        return self._view


def _view(entries: dict[str, float | None], now: float) -> _View:
    queues: dict[str, float | None] = {}
    tables: dict[str, list[Binding]] = defaultdict(list)
    for entry, expires in entries.items():
        if expires is not None and expires <= now:
            continue
        kind, *rest = _parsed(entry)
        if kind == "queue":
            queues[rest[0]] = _later(expires, queues.get(rest[0], 0.0))
        elif kind == "binding":
            binding = (rest[1], rest[2], rest[3])
            if binding not in tables[rest[0]] and _can_match(rest[2]):
                tables[rest[0]].append(binding)
    return _View(queues, dict(tables))


def _can_match(pattern: str) -> bool:
    """Whether *pattern* is valid: anybody may write to the registry."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def matching(table: Iterable[Binding], routing_key: str) -> list[str]:
    """Return the queues in *table* for *routing_key*: by pattern, or else by key."""
    found = [
        queue
        for key, pattern, queue in table
        if (re.match(pattern, routing_key) if pattern else key == routing_key)
    ]
    return list(dict.fromkeys(found))


def _later(expires: float | None, other: float | None) -> float | None:
    return None if expires is None or other is None else max(expires, other)


def _entry(*parts: str) -> str:
    return json.dumps(parts)


_LENGTHS = {"queue": 3, "gone": 3, "binding": 6}


def _parsed(entry: str) -> list[str]:
    """Return the parts of *entry*; [""] for a foreign one."""
    try:
        parts = json.loads(entry)
    except (ValueError, RecursionError):
        return [""]
    if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
        return parts if parts and _LENGTHS.get(parts[0]) == len(parts) else [""]
    return [""]


def _is_unused(entry: str, queue: str) -> bool:
    return _queue_of(entry) == queue and _parsed(entry)[-1] == UNUSED


def _queue_of(entry: str) -> str:
    """Return the queue of *entry*; "" for none."""
    parts = _parsed(entry)
    return parts[-2] if len(parts) > 1 else ""
