"""Failed tasks on Redis: looked at, sent again, discarded; and what they share with dead letters.

Comes from:  people and tools, by ``RedisBroker.failed``; the script of the ack puts them there.
Goes to:     the scripts of ``dead_letters.py``.
Thread:      any; each use borrows a connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from qworker.naming import task_id
from qworker.transports.lease import Again, Dead, Envelope, FailedTasks, Leased
from qworker.transports.redis.connection import checked, pack
from qworker.transports.redis.database import Database
from qworker.transports.redis.dead_letters import DISCARD, PORTION, RETRY, SHOW
from qworker.transports.redis.envelope import from_payload, route, to_payload
from qworker.transports.redis.layout import Layout, moment, whole
from qworker.transports.redis.result_rows import TASK_PREFIX

PLACE = "failed"


class RedisFailed(FailedTasks):
    """database: with the queues that they go back to."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._layout = database.layout

    def kept(self, queue: str | None = None, limit: int = 100) -> list[Dead]:
        return letters_in(self._database, PLACE, queue, limit)

    def send_again(self, calls: Sequence[Again]) -> int:
        count = 0
        for start in range(0, len(calls), PORTION):
            arguments: list[str | int | bytes] = []
            for call in calls[start : start + PORTION]:
                arguments += self._as_sent(call)
            count += self._database.run(RETRY, PLACE, *arguments)
        return count

    def _as_sent(self, call: Again) -> tuple[str | int | bytes, ...]:
        """What RETRY takes for *call*; () when it is kept no longer."""
        key = self._layout.key(f"failure.{call.tag}")
        with self._database.links.lent() as link:
            queue, payload = checked(link, link.ask(pack(("HMGET", key, "queue", "payload")))[0])
        if payload is None:
            return ()
        scale = self._layout.scale
        kept = from_payload(payload, scale)
        name = queue.decode("utf-8", "replace")
        _, tail = route(name, kept.priority, scale)
        sent = Envelope(name, call.headers, call.properties, call.body, kept.priority)
        now = repr(self._database.clock.now()).encode()
        return call.tag, result_key(self._layout, kept), to_payload(sent, now, tail, task_id())

    def discard(self, tags: Sequence[int] | None = None) -> int:
        chosen = tags
        if chosen is None:
            chosen = [letter.tag for letter in self.kept(None, 2**31)]
        portions = (chosen[start : start + PORTION] for start in range(0, len(chosen), PORTION))
        return sum(self._database.run(DISCARD, PLACE, *portion) for portion in portions)


def letters_in(database: Database, place: str, queue: str | None, limit: int) -> list[Dead]:
    """The newest *limit* at *place*, which is that of dead letters ("dead") or of failed tasks ("failed")."""
    if limit <= 0:
        return []
    layout = database.layout
    key = layout.key(place if queue is None else f"{place}.{queue}")
    found = []
    for tag, name, reason, died_at, payload in database.run(SHOW, key, limit, place):
        if not whole(tag) or payload is None:
            continue  # a stranger's
        message = from_payload(payload, layout.scale)
        found.append(
            Dead(
                int(tag),
                name.decode("utf-8", "replace"),
                (reason or b"").decode("utf-8", "replace"),
                moment(died_at or b"") or 0.0,
                message.deliveries,
                message.headers,
                message.properties,
                message.body,
            )
        )
    return found


def result_key(layout: Layout, message: Leased) -> str:
    """Where the result of the task of *message* is kept, if it is here; "" for what has no id."""
    try:
        headers = json.loads(message.headers)
    except ValueError:
        return ""
    identity = headers.get("id") if isinstance(headers, dict) else None
    return f"{layout.join_keys.prefix}{TASK_PREFIX}{identity}" if isinstance(identity, str) else ""
