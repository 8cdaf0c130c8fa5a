"""The Lua about dead letters and failed tasks, and about sweeping out what is too old.

Comes from:  ``admin.py``, ``dead_letters.py``, ``consumer.py``.
Goes to:     a hash for each dead letter, the sorted sets ``qworker.dead`` and ``qworker.dead.<queue>`` by
             time of death; for failed tasks the same with "failed" in the place of "dead".
Thread:      any; constants.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from qworker.naming import task_id
from qworker.transports.lease import Again, Dead, Envelope, FailedTasks, Leased
from qworker.transports.redis.connection import Script, checked, pack
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import Layout, from_payload, moment, route, to_payload, whole
from qworker.transports.redis.result_rows import STORE_ROW, TASK_PREFIX
from qworker.transports.redis.scripts import KEEP_LETTER, PRELUDE, PUT_BACK

PORTION = 500
"""How many dead letters go through a script at a time."""

FORGET = r"""
local function key_of(place, tag)
  return P .. (place == 'dead' and 'qworker.letter.' or 'qworker.failure.') .. tag
end
local function forget(place, tag)
  local key, kept = key_of(place, tag), P .. 'qworker.' .. place
  local letter = redis.call('HMGET', key, 'queue', 'step', 'payload')
  redis.call('ZREM', kept, tag)
  if not letter[1] then return false end
  redis.call('ZREM', kept .. '.' .. letter[1], tag)
  redis.call('DEL', key)
  return letter
end
"""
RETRY = Script(
    PRELUDE
    + STORE_ROW
    + PUT_BACK
    + FORGET
    + r"""
-- ARGV: place, tag, key of its task's result, payload ('': its own), tag, key… Who waits for a retried task
-- is to see its new end, not the old one.
local count = 0
for i = 5, #ARGV, 3 do
  local letter = forget(ARGV[4], ARGV[i])
  if letter then
    local _, _, _, _, rest = stated(ARGV[i + 2] ~= '' and ARGV[i + 2] or letter[3])
    redis.call('LPUSH', list_of(letter[1], letter[2]), joined('0', 'true', '0', 'null', rest))
    if ARGV[i + 1] ~= '' and status_of(ARGV[i + 1]) == 'FAILURE' then
      redis.call('DEL', ARGV[i + 1], ARGV[i + 1] .. '.status')
    end
    notify(letter[1])
    count = count + 1
  end
end
return count
"""
)
DISCARD = Script(
    PRELUDE
    + FORGET
    + r"""
-- ARGV: place, tags…
local count = 0
for i = 5, #ARGV do if forget(ARGV[4], ARGV[i]) then count = count + 1 end end
return count
"""
)
SHOW = Script(
    PRELUDE
    + FORGET
    + r"""
-- ARGV: sorted set, how many, place. Returns tag, queue, reason, died_at, payload of each, the newest first.
local out = {}
for _, tag in ipairs(redis.call('ZREVRANGE', ARGV[4], 0, tonumber(ARGV[5]) - 1)) do
  local letter = redis.call('HMGET', key_of(ARGV[6], tag), 'queue', 'reason', 'died_at', 'payload')
  if letter[1] then out[#out + 1] = {tag, letter[1], letter[2], letter[3], letter[4]} end
end
return out
"""
)
TAKE_IN = Script(
    PRELUDE
    + PUT_BACK
    + KEEP_LETTER
    + r"""
-- ARGV: tag, queue, step, reason, died_at, deliveries, payload, tag, queue… of letters from elsewhere.
for i = 4, #ARGV, 7 do
  local _, redelivered, parked, due, rest = stated(ARGV[i + 6])
  local payload = joined(ARGV[i + 5], redelivered, parked, due, rest)
  redis.call('SADD', P .. 'qworker.queues', ARGV[i + 1])
  keep_letter('dead', ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], payload)
end
return 1
"""
)
SWEEP_LETTERS = r"""
local function sweep_letters(place, before, most, portion)
  local count, kept = 0, P .. 'qworker.' .. place
  local function go(tags) for _, tag in ipairs(tags) do forget(place, tag); count = count + 1 end end
  go(redis.call('ZRANGEBYSCORE', kept, '-inf', '(' .. before, 'LIMIT', 0, portion))
  if redis.call('ZCARD', kept) > most then
    for _, queue in ipairs(redis.call('SMEMBERS', P .. 'qworker.queues')) do
      local key = kept .. '.' .. queue
      local excess = redis.call('ZCARD', key) - most
      if excess > 0 and count < portion then
        go(redis.call('ZRANGE', key, 0, math.min(excess, portion) - 1))
      end
    end
  end
  return count
end
"""
SWEEP = Script(
    PRELUDE
    + FORGET
    + SWEEP_LETTERS
    + r"""
-- ARGV: epoch second before which dead letters are too old, how many a queue keeps, how many go at a time.
local portion = tonumber(ARGV[6])
local count = sweep_letters('dead', ARGV[4], tonumber(ARGV[5]), portion)
for _, member in ipairs(redis.call('ZRANGE', P .. 'qworker.revoked', 0, portion - 1)) do
  if (tonumber(string.match(member, '^[%d.]+') or '') or 0) < WALL then
    redis.call('ZREM', P .. 'qworker.revoked', member)
    count = count + 1
  end
end
return count
"""
)
SWEEP_FAILED = Script(
    PRELUDE
    + FORGET
    + SWEEP_LETTERS
    + r"""
-- ARGV: as of SWEEP, of failed tasks.
return sweep_letters('failed', ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]))
"""
)


# -- Failed tasks on Redis: looked at, sent again, discarded; and what they share with dead letters --
# Thread: any; each use borrows a connection.

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
