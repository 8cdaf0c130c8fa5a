"""Dead letters and failed tasks on Redis: reading, sending again, discarding, and deleting old ones.

Comes from:  users and tools, through ``Broker.letters``; ``consumer.py``, which sweeps.
Goes to:     a hash for each dead letter, the sorted sets ``qworker.dead`` and ``qworker.dead.<queue>`` by
             time of death; for failed tasks the same with "failed" instead of "dead".
Thread:      any; each use borrows a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qworker.naming import task_id
from qworker.transports.lease import Again, Dead, Envelope, Kind, Leased, Letters
from qworker.transports.own_headers import id_in
from qworker.transports.portions import portions
from qworker.transports.redis.connection import Script
from qworker.transports.redis.database import Database
from qworker.transports.redis.envelope import Layout, from_payload, moment, route, to_payload, whole
from qworker.transports.redis.result_rows import STORE_ROW, TASK_PREFIX
from qworker.transports.redis.scripts import KEEP_LETTER, PRELUDE, PUT_BACK

PORTION = 500
"""How many letters one script handles."""

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
-- ARGV: place, and for each letter its tag, the key of its task's result, and a payload ('': its own).
-- The result of the failure is deleted, so that callers wait for the new one. Returns the number of letters.
local count = 0
for i = 5, #ARGV, 3 do
  local letter = forget(ARGV[4], ARGV[i])
  if letter then
    local _, _, _, _, rest = stated(ARGV[i + 2] ~= '' and ARGV[i + 2] or letter[3])
    redis.call('LPUSH', list_of(letter[1], letter[2]), joined('0', 'true', '0', 'null', rest))
    if ARGV[i + 1] ~= '' and status_of(ARGV[i + 1]) == 'FAILURE' then
      redis.call('DEL', ARGV[i + 1], ARGV[i + 1] .. '.status')
    end
    mark(letter[1])
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
-- ARGV: place, tags…  Returns the number of discarded letters.
local count = 0
for i = 5, #ARGV do if forget(ARGV[4], ARGV[i]) then count = count + 1 end end
return count
"""
)
PAGE = Script(
    PRELUDE
    + FORGET
    + r"""
-- ARGV: place, sorted set, limit, tag and time of death of the previous page's last letter ('' for none).
-- Returns tag, queue, reason, died_at and payload of each letter, the newest first.
local place, kept, limit, after, died_at = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]
local out, i = {}, 0
if after ~= '' then
  i = redis.call('ZREVRANK', kept, after)
  if i then i = i + 1 else  -- it was deleted: continue at its time of death
    i = redis.call('ZCOUNT', kept, '(' .. died_at, '+inf')
    local newer = true
    while newer do
      local one = redis.call('ZREVRANGE', kept, i, i, 'WITHSCORES')
      newer = one[1] and tonumber(one[2]) == tonumber(died_at) and one[1] > after
      if newer then i = i + 1 end
    end
  end
end
while #out < limit do
  local tags = redis.call('ZREVRANGE', kept, i, i + limit - 1)
  if #tags == 0 then break end
  for _, tag in ipairs(tags) do
    i = i + 1
    local letter = redis.call('HMGET', key_of(place, tag), 'queue', 'reason', 'died_at', 'payload')
    if letter[1] and letter[4] and string.match(tag, '^%d+$') then  -- others were written by other programs
      out[#out + 1] = {tag, letter[1], letter[2], letter[3], letter[4]}
      if #out == limit then break end
    end
  end
end
return out
"""
)
TAKE_IN = Script(
    PRELUDE
    + PUT_BACK
    + KEEP_LETTER
    + r"""
-- ARGV: place, and for each letter of another broker its tag, queue, step, reason, died_at, deliveries and
-- payload.
for i = 5, #ARGV, 7 do
  local _, redelivered, parked, due, rest = stated(ARGV[i + 6])
  local payload = joined(ARGV[i + 5], redelivered, parked, due, rest)
  redis.call('SADD', P .. 'qworker.queues', ARGV[i + 1])
  keep_letter(ARGV[4], ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], payload)
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
-- ARGV: place, epoch second before which letters are deleted, maximum letters kept in a queue, maximum
-- deleted in one step. Returns the number of deleted letters and revocations.
local place, portion = ARGV[4], tonumber(ARGV[7])
local count = sweep_letters(place, ARGV[5], tonumber(ARGV[6]), portion)
if place == 'failed' then return count end
for _, member in ipairs(redis.call('ZRANGE', P .. 'qworker.revoked', 0, portion - 1)) do
  if (tonumber(string.match(member, '^[%d.]+') or '') or 0) < WALL then
    redis.call('ZREM', P .. 'qworker.revoked', member)
    count = count + 1
  end
end
return count
"""
)


# -- RedisLetters --


class RedisLetters(Letters):
    """kind: also the *place* in the scripts. database: of the letters, and of the queues that they go back
    to."""

    def __init__(self, kind: Kind, database: Database) -> None:
        self._kind = kind
        self._database = database
        self._layout = database.layout

    def page(self, queue: str | None, limit: int, after: Dead | None) -> list[Dead]:
        if limit <= 0:
            return []
        key = self._layout.key(self._kind if queue is None else f"{self._kind}.{queue}")
        place = ("", "") if after is None else (after.tag, repr(after.died_at))
        rows = self._database.run(PAGE, self._kind, key, limit, *place)
        return [self._letter(int(tag), *row) for tag, *row in rows]

    def _letter(
        self, tag: int, name: bytes, reason: bytes | None, died_at: bytes | None, payload: bytes
    ) -> Dead:
        message = from_payload(payload, self._layout.scale)
        return Dead(
            tag,
            name.decode("utf-8", "replace"),
            (reason or b"").decode("utf-8", "replace"),
            moment(died_at or b"") or 0.0,
            message.deliveries,
            message.headers,
            message.properties,
            message.body,
        )

    def retry(self, tags: Sequence[int] | None = None) -> int:
        count = 0
        for portion in self._portions(tags):
            arguments: list[str | int] = []
            for tag, (_, payload) in zip(portion, self._kept(portion), strict=True):
                message = None if payload is None else from_payload(payload, self._layout.scale)
                arguments += (tag, "" if message is None else result_key(self._layout, message), "")
            count += self._database.run(RETRY, self._kind, *arguments)
        return count

    def send_again(self, calls: Sequence[Again]) -> int:
        count = 0
        for some in portions(calls, PORTION):
            arguments: list[str | int | bytes] = []
            for call, (queue, payload) in zip(some, self._kept([call.tag for call in some]), strict=True):
                if queue is not None and payload is not None:
                    arguments += self._as_sent(call, queue.decode("utf-8", "replace"), payload)
            count += self._database.run(RETRY, self._kind, *arguments)
        return count

    def _as_sent(self, call: Again, queue: str, payload: bytes) -> tuple[str | int | bytes, ...]:
        """Return the arguments of RETRY for *call*, which is kept as *payload*."""
        scale = self._layout.scale
        kept = from_payload(payload, scale)
        _, tail = route(queue, kept.priority, scale)
        sent = Envelope(queue, call.headers, call.properties, call.body, kept.priority)
        now = repr(self._database.clock.now()).encode()
        return call.tag, result_key(self._layout, kept), to_payload(sent, now, tail, task_id())

    def discard(self, tags: Sequence[int] | None = None) -> int:
        return sum(self._database.run(DISCARD, self._kind, *portion) for portion in self._portions(tags))

    def push(self, letters: Sequence[Dead]) -> None:
        scale = self._layout.scale
        for some in portions(letters, PORTION):
            arguments: list[Any] = []
            for letter in some:
                _, queue, reason, died_at, deliveries, headers, properties, body = letter
                step, tail = route(queue, 0, scale)
                payload = to_payload(Envelope(queue, headers, properties, body), b"null", tail, task_id())
                tag = from_payload(payload, scale).tag
                arguments += (tag, queue, step, reason, repr(float(died_at)), deliveries, payload)
            self._database.run(TAKE_IN, self._kind, *arguments)

    def _kept(self, tags: Sequence[int]) -> list[tuple[bytes | None, bytes | None]]:
        """Return queue and payload of the letters with *tags*; None where one is missing."""
        name = "letter" if self._kind == "dead" else "failure"
        keys = (self._layout.key(f"{name}.{tag}") for tag in tags)
        return [
            tuple(reply) for reply in self._database.ask([("HMGET", key, "queue", "payload") for key in keys])
        ]

    def _portions(self, tags: Sequence[int] | None) -> Iterator[Sequence[int]]:
        if tags is None:
            known = map(whole, self._database.ask([("ZRANGE", self._layout.key(self._kind), 0, -1)])[0])
            tags = [tag for tag in known if tag]
        return portions(tags, PORTION)


def result_key(layout: Layout, message: Leased) -> str:
    """Return the key of the result of *message*'s task, if it is stored here; "" if it is not, and for a
    message without an id."""
    identity = id_in(message.headers) if layout.has_results else None
    return "" if identity is None else f"{layout.join_keys.prefix}{TASK_PREFIX}{identity}"
