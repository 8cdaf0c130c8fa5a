"""Revocations on Redis: each has a number, and stands until it expires.

Comes from:  ``sender.py``, which makes them; ``consumer.py``, which asks for the new ones.
Goes to:     the sorted set ``qworker.revoked`` by their numbers, the last of which is in
             ``qworker.revoked.number``; the channel of revocations, which is that of the queue without a
             name.
Thread:      any.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from qworker.transports.lease import Revocation
from qworker.transports.redis.connection import Link, Script, checked, pack
from qworker.transports.redis.database import Database
from qworker.transports.redis.layout import Layout, whole
from qworker.transports.redis.scripts import PRELUDE

logger = logging.getLogger(__name__)

REVOKE = Script(
    PRELUDE
    + r"""
-- ARGV: when it expires, the order as JSON…
for i = 5, #ARGV do
  local number = number_after(P .. 'qworker.revoked.number')
  redis.call('ZADD', P .. 'qworker.revoked', number, ARGV[4] .. ' ' .. number .. ' ' .. ARGV[i])
end
notify('')
return 1
"""
)


def revoke(database: Database, until: float, ids: Sequence[str], terminate: bool, signal: str) -> None:
    """Revoke the tasks *ids*, until that epoch second."""
    orders = [json.dumps([task_id, terminate, signal]) for task_id in ids]
    database.run(REVOKE, repr(until), *orders)


def revoked_since(link: Link, layout: Layout, cursor: int, now: float) -> tuple[int, list[Revocation]]:
    """A new cursor, and what was revoked since *cursor* and stands at epoch second *now*."""
    # The number first: whatever it counts is there when the second command looks.
    commands = (
        ("GET", layout.key("revoked.number")),
        ("ZRANGEBYSCORE", layout.key("revoked"), f"({cursor}", "+inf"),
    )
    last, members = (checked(link, reply) for reply in link.ask(b"".join(map(pack, commands)), len(commands)))
    reached, found = max(cursor, whole(last)), []
    for member in members:
        try:
            expires, number, order = member.decode().split(" ", 2)
            at, until, read = int(number), float(expires), Revocation(*json.loads(order))
        except (ValueError, TypeError, RecursionError):
            logger.warning("an order to revoke cannot be read, and is passed over: %.100r", member)
            continue
        reached = max(reached, at)
        if until > now and all(map(isinstance, read, (str, bool, str))):
            found.append(read)
    return reached, found
