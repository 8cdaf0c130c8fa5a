"""Reclaiming messages of dead consumers: our own workers, and stock consumers.

Comes from:  ``consumer.py``.
Goes to:     the sorted set ``qworker.owners``, the hash ``qworker.owner.<generation>``, kombu's ``unacked``.
Thread:      the listener's.

On the machine of its lock (``process/owner_files.py``), the kernel shows a consumer's death at once;
elsewhere (another host, another container) the lease must expire, on the server's clock. The messages that
children mark as running are copied to the owner's record, for other hosts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from qworker.clock import boot_id
from qworker.process import owner_files
from qworker.transports.lease import Reclaimed
from qworker.transports.redis.connection import Link, checked, pack
from qworker.transports.redis.envelope import SEPARATOR, Layout, from_payload, whole
from qworker.transports.redis.scripts import GIVE_BACK, RESTORE

RESTORE_PORTION = 100
LOOK_SECONDS = 3600.0
"""Interval of looking for consumers to remove from the list, if no other lease has expired."""
FORGET_SECONDS = 86400.0
"""Seconds after the end of its lease when a silent consumer without messages is removed from the list."""


def died(record: dict[str, str]) -> bool:
    """Return whether the owner with this record is certainly dead."""
    return owner_files.died(record.get("lock", ""), record.get("boot", ""))


def record_of(fields: list[bytes]) -> dict[str, str]:
    """Parse the reply to HGETALL of an owner's record."""
    texts = [field.decode("utf-8", "replace") for field in fields]
    return dict(zip(texts[::2], texts[1::2], strict=True))


class Reclaimer:
    """Reclaims from other consumers, on behalf of one of them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._records: dict[bytes, dict[str, str]] = {}
        self._idle: dict[bytes, bytes] = {}
        """Silent generations without messages → their lease: not checked again before that changes."""
        self._local_deaths = owner_files.LocalDeaths()
        self._expired = 0
        self._next_expires = 0.0
        """The number of expired leases, and the monotonic time until which no other lease expires."""
        self._look_at = 0.0

    def note_leases(self, expired: int, next_expires: float) -> None:
        """Take note of the number of *expired* leases, and of the monotonic time at which the next one may
        expire: reclaim() need not ask the server before."""
        self._expired, self._next_expires = expired, next_expires

    def owners(self, link: Link) -> list[tuple[bytes, bytes, dict[str, str]]]:
        """Return generation, end of the lease and record of each consumer."""
        leases = self._leases(link)
        self._read_records(link, leases)
        return [(generation, lease, self._records[generation]) for generation, lease in leases.items()]

    def _leases(self, link: Link) -> dict[bytes, bytes]:
        """Return the ends of all leases by generation."""
        reply = checked(link, link.ask(pack(("ZRANGE", self._layout.keys[2], 0, -1, "WITHSCORES")))[0])
        pairs = zip(reply[::2], reply[1::2], strict=True)
        leases = {generation: lease for generation, lease in pairs if whole(generation)}
        self._idle = {each: lease for each, lease in self._idle.items() if leases.get(each) == lease}
        self._records = {each: record for each, record in self._records.items() if each in leases}
        return leases

    def _read_records(self, link: Link, generations: Iterable[bytes]) -> None:
        """Read the records of *generations* that are not known yet."""
        unknown = [generation for generation in generations if generation not in self._records]
        if unknown:
            commands = b"".join(
                pack(("HGETALL", self._layout.key(f"owner.{generation.decode()}"))) for generation in unknown
            )
            for generation, fields in zip(unknown, link.ask(commands, len(unknown)), strict=True):
                self._records[generation] = record_of(checked(link, fields))

    def reclaim(
        self, link: Link, own: int, wall: float, now: float | None, silent_too: bool, running: str
    ) -> list[Reclaimed]:
        """Put back the messages of dead consumers. now: on the clock of leases, None for the server's.
        silent_too: see ``Consumer.reclaim``. running: our running file, beside the locks of the other
        consumers on this machine. The server is only asked if one of them has died, or if another lease may
        have expired."""
        free = self._local_deaths.look(running)
        began = time.monotonic()
        if began < min(self._next_expires, self._look_at) and self._expired == len(self._idle):
            silent_too = False
        if not silent_too and not free:
            return []
        self._look_at = began + LOOK_SECONDS
        found = []
        others = {each: lease for each, lease in self._leases(link).items() if whole(each) != own}
        if not others:
            self._local_deaths.ignore(free)
            return []
        current = server_time(link) if now is None and silent_too else now or 0.0
        silent_too = silent_too and time.monotonic() - began < owner_files.PROMPT_SECONDS
        expired = {each for each, lease in others.items() if silent_too and float(lease) < current}
        self._read_records(link, others if free else expired)
        for generation, lease in others.items():
            if (record := self._records.get(generation)) is None:
                continue
            dead = died(record)
            forgotten = float(lease) < current - FORGET_SECONDS
            silent = generation in expired and (forgotten or self._idle.get(generation) != lease)
            if not dead and not silent:
                continue
            reply = self._layout.run(
                link,
                GIVE_BACK,
                wall,
                generation,
                "" if now is None else repr(now),
                "dead" if dead else "silent",
                0,
                2**53,
                *self._counted(link, generation, record),
            )
            if reply is None:
                self._idle[generation] = lease
                continue
            if dead or reply[0]:
                found.append(Reclaimed(record.get("name", generation.decode()), reply[0], reply[1]))
            if dead:
                owner_files.delete_files(record["lock"])
                free.discard(record["lock"])
        self._local_deaths.ignore(free)
        return found

    def _counted(self, link: Link, generation: bytes, record: dict[str, str]) -> list[int]:
        """Return the numbers of *generation*'s messages that were running, as far as is known."""
        running = (
            owner_files.running_tags(record.get("marks", "")) if record.get("boot") == boot_id() else None
        )
        if running is None:
            copied = checked(
                link, link.ask(pack(("HGET", self._layout.key(f"owner.{generation.decode()}"), "running")))[0]
            )
            running = owner_files.copied_tags((copied or b"").decode("utf-8", "replace"))
        if not running:
            return []
        start = b"qworker:%b:" % generation
        unacked = self._layout.keys[0]
        fields = [
            field for field in checked(link, link.ask(pack(("HKEYS", unacked)))[0]) if field.startswith(start)
        ]
        if not fields:
            return []
        numbers = []
        for field, value in zip(
            fields, checked(link, link.ask(pack(("HMGET", unacked, *fields)))[0]), strict=True
        ):
            if value is not None and from_payload(_payload(value), self._layout.scale).tag in running:
                numbers.append(whole(field.split(b":", 3)[2]))
        return numbers

    # -- stock consumers --

    def restore(self, link: Link, wall: float) -> int:
        """Give back messages that stock consumers took longer ago than the visibility timeout, as they do
        themselves."""
        before = server_time(link) - self._layout.visibility_timeout
        unacked, index, _ = self._layout.keys
        command = pack(("ZRANGEBYSCORE", index, "-inf", repr(before), "LIMIT", 0, RESTORE_PORTION))
        stale = [field for field in checked(link, link.ask(command)[0]) if not field.startswith(b"qworker:")]
        if not stale:
            return 0
        values = checked(link, link.ask(pack(("HMGET", unacked, *stale)))[0])
        return sum(
            self._restore(link, wall, field, value) for field, value in zip(stale, values, strict=True)
        )

    def _restore(self, link: Link, wall: float, field: bytes, value: bytes | None) -> int:
        try:
            message, exchange, routing_key = json.loads(value or b"null")
            message["headers"]["redelivered"] = True
            message["properties"]["delivery_info"]["redelivered"] = True
            kombus = int(message["properties"].get("priority") or 0)
            if not isinstance(exchange, str) or not isinstance(routing_key, str):
                return 0
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return 0  # acked meanwhile, or unreadable
        queue = self._queue(link, exchange, routing_key)
        if queue is None:
            return 0
        step = max((step for step in self._layout.scale.steps if step <= kombus), default=0)
        payload = json.dumps(message)
        restored: int = self._layout.run(
            link, RESTORE, wall, field, self._layout.list_of(queue, step), payload, queue
        )
        return restored

    def _queue(self, link: Link, exchange: str, routing_key: str) -> str | None:
        """Return the queue for *routing_key* at *exchange*, by kombu's table of bindings."""
        if not exchange:
            return routing_key
        members = checked(
            link, link.ask(pack(("SMEMBERS", f"{self._layout.prefix}_kombu.binding.{exchange}")))[0]
        )
        for member in members:
            key, _, queue = (*member.decode("utf-8", "replace").split(SEPARATOR), "", "")[:3]
            if key == routing_key and queue:
                return str(queue)
        return None


def _payload(value: bytes) -> bytes:
    """Return the payload in ``[payload, "", "queue"]``."""
    return value[1 : value.rfind(b', "", "')]


def server_time(link: Link) -> Any:
    """Return epoch seconds on the server's clock."""
    seconds, microseconds = checked(link, link.ask(pack(("TIME",)))[0])
    return int(seconds) + int(microseconds) / 1e6
